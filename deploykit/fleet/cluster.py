"""Runs cells on other machines through Dask's scheduler: each worker receives inputs once and returns packages.

Dask handles scheduling, retries and data transfer; a worker makes its
cells as this machine would, in its own processes.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from os.path import commonpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from deploykit.errors import DeploykitError, InputError, ToolError, UsageError
from deploykit.findings.records import Json, Record, field, replace
from deploykit.fleet.cells import Cell, input_files, moved, request_from_json, tool_versions
from deploykit.fleet.pool import Batch, Tell, run_batch
from deploykit.fleet.results import CELLS, PACKAGE, CellResult, error_result, read_result, write_result
from deploykit.packages.manifests import hash_file
from deploykit.packages.placing import FRESH, OLD, check_place
from deploykit.system.files import read_regular, with_folder
from deploykit.system.folders import exchange, scratch, workspace

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["address_of", "run_on_cluster"]

_DASK = "dask://"
_TOPIC = "deploykit-news"
_RETRIES = 2  # how often a batch is restarted elsewhere after its worker died
_MOST_SENT = 1 << 30  # bytes; larger inputs are not sent through the scheduler's network
# Memory requested on a worker: this many bytes, plus this many times the bytes of the inputs.
_ROOM, _PER_BYTE = 1 << 30, 6
_CONNECT_SECONDS = 20
_AHEAD = 2  # tasks per worker thread: one that runs and one whose inputs are being sent


def address_of(executor: str) -> str | None:
    """Return the scheduler's address that ``--executor`` names, None for this
    machine. Raises UsageError for anything else.
    """
    if executor == "local":
        return None
    if not executor.startswith(_DASK) or executor == _DASK:
        raise UsageError(f"--executor {executor}: no such executor", next=f"local, or {_DASK}HOST:PORT")
    return executor.removeprefix(_DASK)


def run_on_cluster(
    address: str, batches: Sequence[Batch], folder: Path, *, limit: float, fail_fast: bool, tell: Tell
) -> Iterator[CellResult]:
    """Make batches on the workers of a scheduler; every cell gets a result, which is also written below ``folder``.

    ``limit`` is in seconds per cell. Raises UsageError without ``distributed``, ToolError if no
    scheduler answers or no worker has the same versions.
    """
    if not batches:
        return
    with _client(address) as client:
        client.subscribe_topic(_TOPIC, lambda event: tell(*event[1]))
        cluster = _Cluster(client=client, limit=limit, fail_fast=fail_fast, tell=tell)
        ended = _distributed().as_completed(loop=client.loop, raise_errors=False)
        waiting = dict[Any, tuple[Batch, int]]()

        def begin(batch: Batch, tries: int) -> Iterator[CellResult]:
            """Send a batch; if it cannot be sent, yield that error as the result of its cells."""
            try:
                waiting[future := cluster.submit(batch)] = (batch, tries)
                ended.add(future)
            except DeploykitError as error:
                yield from _failed(batch, error, folder)

        left = deque(batches)

        def fill() -> Iterator[CellResult]:
            """Send only enough to keep the workers busy: what remains may go to a worker that joins later."""
            while left and len(waiting) < cluster.room():
                yield from begin(left.popleft(), 1)

        yield from fill()
        for future in ended:
            batch, tries = waiting.pop(future)
            bad = False
            try:
                results = _received(dict(future.result()), batch, folder)
            except Exception as error:  # for example its worker died, or the inputs that it held
                why = f"{type(error).__name__}: {str(error)[:300]}"
                failed = _failed(batch, ToolError("the cluster did not make it", why=why), folder)
                results = begin(batch, tries + 1) if tries <= _RETRIES else failed
            for result in results:
                bad = bad or result.exit_status != 0
                yield result
            if bad and fail_fast:
                client.cancel(list(waiting))
                return
            yield from fill()


@contextlib.contextmanager
def _client(address: str) -> Iterator[Client]:
    try:
        client = _distributed().Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ToolError(f"dask://{address}: no scheduler answers there", why=str(error)) from None
    try:
        yield client
    finally:
        client.close()


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise UsageError(
            "--executor dask://…: 'distributed' is not installed", next="pip install 'deploykit[dask]'"
        ) from None
    return distributed


def _alike(client: Client, tell: Tell) -> dict[str, int]:
    """Return the workers with the same versions as this machine, each with its memory in bytes, 0 for no limit.

    Raises ToolError if there are none.
    """
    mine = tool_versions()
    known = client.run(tool_versions, on_error="return")
    limits = {name: int(facts["memory_limit"] or 0) for name, facts in client.scheduler_info(-1)["workers"].items()}
    others = {name: versions for name, versions in known.items() if versions != mine}
    for name, versions in others.items():
        tell(name, f"not used: {_difference(mine, versions)}")
    alike = {name: limits.get(name, 0) for name in known if name not in others}
    if not alike:
        told = "; ".join(f"{name}: {_difference(mine, versions)}" for name, versions in [*others.items()][:3])
        raise ToolError(
            "no worker of the cluster can be used",
            why=told or "there are none",
            next="install the same versions on the workers as here",
        )
    return alike


def _difference(mine: Mapping[str, str], theirs: object) -> str:
    if not isinstance(theirs, Mapping):
        return str(theirs)
    return ", ".join(
        f"{name} {theirs.get(name) or 'missing'} instead of {wanted or 'none'}"
        for name, wanted in mine.items()
        if theirs.get(name) != wanted
    )


class _Cluster(Record):
    """Turns batches into tasks; ``sent`` maps the digests of inputs to their copies on the workers."""

    client: Client
    limit: float
    fail_fast: bool
    tell: Tell
    sent: dict[str, Future[bytes]] = field(default_factory=dict)

    def room(self) -> int:
        """Return how many tasks keep the current workers busy, with one waiting per running one; at least one."""
        workers = self.client.scheduler_info(-1)["workers"]
        return max(1, _AHEAD * sum(int(facts["nthreads"]) for facts in workers.values()))

    def submit(self, batch: Batch) -> Future[Any]:
        """Submit one task for a batch to those current workers that have enough memory.

        Raises DeploykitError for unreadable inputs or if no worker is suitable.
        """
        paths = sorted({path.absolute() for cell, _ in batch for path in input_files(cell.request)})
        root = Path(commonpath([path.parent for path in paths]))
        sizes = [path.stat().st_size for path in paths]
        if max(sizes) > _MOST_SENT:
            raise UsageError(
                f"an input has {max(sizes):,} bytes, more than the {_MOST_SENT:,} that are sent to workers",
                next="run this model here, or put it on a shared disk and use --emit snakemake",
            )
        workers, needed = _alike(self.client, self.tell), _ROOM + _PER_BYTE * sum(sizes)
        fitting = [name for name, memory in workers.items() if not memory or memory >= needed]
        if not fitting:
            raise ToolError(
                "no worker has the memory for it",
                why=f"it may take {needed / 2**30:.1f} GiB; the largest has {max(workers.values()) / 2**30:.1f} GiB",
                next="start workers with more memory (--memory-limit), or run it here",
            )
        digests = [hash_file(path)[1] for path in paths]
        for path, digest in zip(paths, digests, strict=True):
            if digest not in self.sent or self.sent[digest].status != "finished":  # lost with its workers
                data = read_regular(path)
                self.sent[digest] = self.client.scatter(data, hash=False, workers=fitting, broadcast=True, direct=False)

        # Paths are relative to the root, and a worker recreates them below its own.
        def near(path: Path) -> Path:
            return path.absolute().relative_to(root)

        told = [{"key": key, **replace(cell, request=moved(cell.request, near)).to_json()} for cell, key in batch]
        return self.client.submit(
            make_on_worker,
            told,
            [near(path).as_posix() for path in paths],
            [self.sent[digest] for digest in digests],
            self.limit,
            self.fail_fast,
            workers=fitting,
            allow_other_workers=False,
            pure=False,
        )


def make_on_worker(
    told: Sequence[Json], names: Sequence[str], contents: Sequence[bytes], limit: float, fail_fast: bool
) -> list[tuple[str, bytes]]:
    """Run on a worker: store the inputs by name, make the cells, and return the folder of each as an archive."""
    with scratch() as folder:
        root = folder / "inputs"
        for name, content in zip(names, contents, strict=True):
            with_folder(root / name).write_bytes(content)
        batch = tuple((_cell(cell, root), str(cell["key"])) for cell in told)
        made = run_batch(
            batch,
            folder,
            limit=limit,
            fail_fast=fail_fast,
            tell=lambda *line: _distributed().get_worker().log_event(_TOPIC, line),
        )
        return [(one.cell, packed(folder, one.cell)) for one in made]


def _cell(told: Json, root: Path) -> Cell:
    request = moved(request_from_json(told["request"]), lambda path: root / path)
    name = str(told["id"])
    model, _, target = name.partition("/")
    return Cell(id=name, model=model, target=target, request=request)


def _received(made: Mapping[str, bytes], batch: Batch, folder: Path) -> Iterator[CellResult]:
    """Unpack the results of a batch that ended into the result folder and yield them."""
    for cell, key in batch:
        if cell.id not in made:
            continue
        try:
            yield unpack(made[cell.id], folder, cell.id)
        except DeploykitError as error:
            yield from _failed(((cell, key),), error, folder)


def _failed(batch: Batch, error: DeploykitError, folder: Path) -> Iterator[CellResult]:
    for cell, key in batch:
        result = error_result(cell.id, key, error)
        write_result(folder, result)
        yield result


def packed(folder: Path, cell: str) -> bytes:
    """Pack the result and the package of one cell into an archive, with names relative to the cell's folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(folder / CELLS / cell, arcname=".")
    return stream.getvalue()


def unpack(data: bytes, folder: Path, cell: str) -> CellResult:
    """Unpack an archive made by ``packed`` into a result folder.

    Raises InputError for any other data, PackageError if it cannot replace the existing package.
    """
    place = with_folder(folder / CELLS / cell / PACKAGE)
    with workspace(place.parent, PACKAGE) as room:
        unpacked = room / CELLS / cell
        unpacked.mkdir(parents=True)
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                # Reject links, devices and paths outside the folder; the filter "data" checks that and more.
                for member in archive:
                    path = PurePosixPath(member.name)
                    if not (member.isfile() or member.isdir()) or path.is_absolute() or ".." in path.parts:
                        raise InputError(f"{cell}: what the worker sent is no package")
                # Python 3.11.2 lacks this filter; names and kinds were checked above.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(unpacked)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise InputError(f"{cell}: what the worker sent is damaged", why=str(error)) from None
        result = read_result(room, cell)
        if result is None or result.cell != cell:
            raise InputError(f"{cell}: what the worker sent holds no result of it")
        if (unpacked / PACKAGE).is_dir():
            fresh = (unpacked / PACKAGE).rename(room / FRESH)
            if check_place(place, force=True):
                exchange(fresh, place, room / OLD)
            else:
                fresh.rename(place)
    write_result(folder, result)
    return result
