"""One file format a module: layout, validity, encode and decode. Imports `store.io` only. From outside: every module, to read."""
