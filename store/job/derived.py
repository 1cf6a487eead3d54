"""The derived files of one generation: state table, queues, catalogue. With what the job knows of them: marker and ledger."""

from __future__ import annotations

from store.directory import StoreDirectory
from store.io import disk
from store.job.retention import Ledger
from store.records import topic_of_key
from store.tables.consume_queue import GrowingQueue
from store.tables.queue_extents import Catalogue
from store.tables.queue_files import QueueFiles, topic_queue_name
from store.tables.redo_log import Marker
from store.tables.state_table import StateTable


class DerivedFiles:
    """Everything up to `marker` is in them."""

    def __init__(self, directory: StoreDirectory, generation: int, marker: Marker, ledger: Ledger) -> None:
        self.generation, self.marker, self.ledger = generation, marker, ledger
        self.root = directory.generation(generation)
        disk.make_directory(self.root)
        shape = directory.geometry
        self.table = StateTable(self.root / "statetable" / "0", shape.state_rows_per_file, writable=True)
        self.catalogue = Catalogue(self.root / "catalogue", writable=True)
        self.queues = QueueFiles(self.root, shape.topic_queue_entries_per_file, writable=True)
        # Until recovery has flushed everything: an earlier process may have died before the names of its files were durable.
        self.queues.doubtful = True
        #: Queues that got entries which the catalogue does not have yet: (place of the first, end), by queue key.
        self.grown: dict[int, tuple[int, int]] = {}

    def queue(self, name: str) -> GrowingQueue:
        return self.queues.queue(name)

    def topic_queue(self, queue_key: int) -> GrowingQueue:
        return self.queues.queue(topic_queue_name(*topic_of_key(queue_key)))

    def extend_catalogue(self) -> None:
        self.catalogue.extend_many(self.grown)
        self.grown.clear()

    def flush(self) -> None:
        self.table.flush()
        self.queues.flush()
        self.catalogue.file.flush()

    def close(self) -> None:
        self.table.close()
        self.catalogue.close()
        self.queues.close()
