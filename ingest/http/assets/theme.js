// Before the first paint: the theme that was chosen here, or the system's.
"use strict";
try {
  const chosen = localStorage.getItem("escrow-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is switched off: the system's theme then.
}
