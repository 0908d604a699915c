"""Explains a failure that no row knows, by which tool failed and how. It reads no log and never overrides a row."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from deploykit.answers.diagnosis.collecting import ErrorLine, Hit
from deploykit.answers.diagnosis.events import Event, compiled, event_of, speaker
from deploykit.answers.diagnosis.trouble import TOLD
from deploykit.answers.diagnosis.verdict import Cause
from deploykit.findings import Confidence, Severity
from deploykit.tables.known_errors import Catalog, FailureKind, KnownError, Tool

__all__ = ["NOBODY", "answer_by_structure", "end_of_first_step"]

_NO_ROW = "no row has these words"
NOBODY = "no tool on the way of a model onto the NPU is recognised in this log"
_LONGEST_NAME = 160
_CRASHED = re.compile(
    r"core dumped|\bKilled\b|^\S*sh: (?:(?:line )?\d+: )?(?!warning)\S+: .*(?:ot found|No such|denied|cannot execute)"
)
_DIED = re.compile(r"\W{0,4}(?:Segmentation fault|Bus error|Illegal instruction|Aborted|Killed)\b")
_NAMES_ITSELF = re.compile(  # a package before its exception, or a program before its message
    r"(?:\[\w+\]: |\S*[/\\])?(?!(?:error|fatal|panic|warning|failed|info|note|reason|libc|\w{0,2}sh)\b)"
    r"(?![\w-]*(?:npu|dsp|backend)\b)"
    r"([a-z_]\w*(?:\.\w+)*?(?=\.[A-Z]\w*(?:Error|Exception|Refused|Timeout)\b)|[a-z][a-z\d+-]+(?=(?:\[\d+\])?: \S))"
)
_INNERMOST = re.compile(r'File "[^"\n]*-packages[/\\](\w+)[^\n]*(?![\s\S]*\nFile ")')  # the package of the last frame
_RAISED = re.compile(r"(?:\w+\.)*[A-Z]\w+(?:: |$)")  # directly after a frame without source
_CHAINED = re.compile(r"During handling of the above|The above exception was")
# A destructor reports what ended the work before it; a command that Python could not start was tried again later; the
# first line of a stack gives no reason.
_NO_REASON = re.compile(r"[\s:]~[A-Z]\w+[\]:(]|: Error while finding module specification for |^\s*Traceback \(most")


def answer_by_structure(lines: Iterable[ErrorLine], catalog: Catalog, wrote: Collection[str]) -> Cause | None:
    """The cause by the first line with a known kind of failure, and a known tool if the kind needs one.

    A kind that says why comes before one that only says that something failed, a line of a failure before one of a
    doubt; warnings are used only if nothing else gives an answer. A failure of a tool outside the chain is named as its
    own. ``wrote`` are the tools that left a mark in the log. Returns None if there is no answer.
    """
    pairs = [(line, event_of(line, catalog)) for line in lines]
    severe = [pair for pair in pairs if pair[1].level in ("error", "")]
    # A frame of a Python stack shows code: what might be raised, not what was.
    telling = [pair for pair in severe if "".join(pair[0].before[-1:])[:6] != 'File "' or _RAISED.match(pair[0].text)]
    severe = [pair for pair in telling if not _NO_REASON.search(pair[0].text)] or telling or severe
    beside = {tool.id for tool in catalog.tools if tool.foreign or tool.drives_others}
    nobody = {*wrote, *(event.tool for _, event in pairs)} - {""} <= beside
    if nobody:
        # If nothing in the log is about this chip, a failure of a framework for many chips is the framework's own.
        catalog = replace(catalog, tools=tuple(replace(tool, foreign=tool.id in beside) for tool in catalog.tools))
    vague = {f"line/{kind.id}" for kind in catalog.kinds if kind.root != "cause" and not kind.chain}
    # The reporter's own sentences are used only if the log itself has no answer.
    for asked in ([pair for pair in severe if not TOLD.search(pair[0].text)], severe):
        answer = _by_kind(asked, catalog, nobody=nobody)
        if answer is None or answer.error.id in vague:
            end = end_of_first_step([line for line, _ in asked])
            first = [pair for pair in asked if pair[0].line <= end]
            answer = _beside_the_chain(first, catalog, nobody=nobody) or answer
        elif nobody and re.match("line/(?!crashed)", answer.error.id):  # find out whose failure came first
            first = [pair for pair in asked if pair[0].line < answer.first_line and pair[0].trouble == "failure"]
            answer = _beside_the_chain(first, catalog, nobody=False) or answer
        if answer:
            break
    if answer is None and not any(line.trouble == "failure" for line, _ in severe):
        answer = _by_kind([pair for pair in pairs if pair[1].level == "warning"], catalog, mild=True, nobody=nobody)
    return answer


def end_of_first_step(lines: Collection[ErrorLine]) -> int:
    """The line where the first failed process ended, by a Python stack or crash; ``sys.maxsize`` if none did.

    An exception that led to another one is not an end.
    """
    chained = {line.line for line in lines if _CHAINED.match(line.text)}
    for line in lines:
        frames = [text[:6] == 'File "' for text in (*line.before[-3:], line.text)]
        bare = frames[-2:] == [True, False] and _RAISED.match(line.text)
        raised = bare or (any(frames[:-2]) and not any(frames[-2:]))
        if (raised and chained.isdisjoint(range(line.line, line.line + 4))) or _CRASHED.search(line.text):
            return line.line
    return sys.maxsize


def _by_kind(
    pairs: Sequence[tuple[ErrorLine, Event]], catalog: Catalog, *, nobody: bool, mild: bool = False
) -> Cause | None:
    """The first answer among lines of one level; from warnings only causes that need no tool, as a warning.

    A failure that may follow from an earlier failed step counts only up to the end of the first process.
    """
    kinds = sorted(catalog.kinds, key=lambda kind: (not kind.speakers, not kind.chain))
    if mild:
        kinds = [kind for kind in kinds if kind.alone and kind.root == "cause"]
    end = end_of_first_step([line for line, _ in pairs])
    found = [
        (kind, line, event, names)
        for line, event in pairs
        for kind, names in _kinds(event.text, kinds)
        if not (kind.late and line.line > end)
    ]
    found.sort(key=lambda item: (item[0].root != "cause", item[1].trouble != "failure"))
    tools = {tool.id: tool for tool in catalog.tools}
    rows = {row.id: row for row in catalog.errors}
    for kind, line, event, names in found:
        said = f"{kind.id} {event.tool} {' '.join(names.values())}"
        named = next((row for row in catalog.errors for text in row.events if compiled(text).match(said)), None)
        known = named or rows.get(kind.row)  # other words nearby may rule the row out
        unless = known.unless if known and kind.chain else ()
        if refuted := [text for text in (line.text, *line.before) if any(word in text for word in unless)]:
            if other := speaker(refuted, [tool for tool in catalog.tools if tool.foreign]):
                return _beside(line, other, catalog)
            continue
        if event.tool in kind.speakers or (not kind.speakers and (kind.alone or event.tool)):
            tool = tools.get(event.tool) or Tool("line", "the program")
            if nobody and tool.id == "line" and known is None:
                owner = speaker((names.get("other", "").strip("'"),), catalog.tools)
                tool = _unknown_package(line, catalog) or owner or tool
            words = defaultdict(partial(str, kind.unnamed or "not named"), _spelled_out(names, catalog))
            words["speaker"] = tool.name
            said = " ".join(kind.cause.format_map(words).split())
            way_out = kind.workaround.format_map(words)
            if tool.foreign and not mild and not named:
                return _beside(line, tool, catalog, said, way_out, kind.source)
            row = known or KnownError(
                id=f"{tool.id}/{kind.id}",
                cause=said,
                workaround="; ".join(filter(None, (way_out, tool.advice))),
                source=tuple(dict.fromkeys((*tool.source, *kind.source))),
                confidence=Confidence.INFERRED,
                symptom=line.text,
                root=kind.root,
                stage=event.stage,
                tools=tuple(filter(None, (event.tool,))),
            )
            row = replace(row, severity=Severity.WARNING if mild else Severity.ERROR)
            why = "by whose code fails and how" if event.tool else "by what the line itself says"
            return _cause(line, row, f"{why}; {_NO_ROW}{f', and {NOBODY}' if nobody else ''}")
    return None


def _kinds(text: str, kinds: Iterable[FailureKind]) -> Iterator[tuple[FailureKind, dict[str, str]]]:
    for kind in kinds:
        matches = [match for pattern in kind.patterns if (match := compiled(pattern).search(text))]
        if matches:  # prefer the first match with a name
            match = next((match for match in matches if match.groupdict().get("name")), matches[0])
            name = kind.unnamed or text[match.start() :].strip()[:_LONGEST_NAME]
            given = {
                key: said[:_LONGEST_NAME]
                for key, value in match.groupdict("").items()
                if (said := value.strip(" .,:;"))
            }
            yield kind, {"name": name, **given}


def _spelled_out(names: dict[str, str], catalog: Catalog) -> dict[str, str]:
    """The captured words, with the meaning from the tables added to the number in the group ``code``.

    The group may also hold the text that programs print for the number.
    """
    spelling = names.get("code", "")
    meaning = catalog.spelled_code(spelling)
    return names if meaning is None else {**names, "code": f"{spelling}, {meaning.meaning}"}


def _beside_the_chain(pairs: Sequence[tuple[ErrorLine, Event]], catalog: Catalog, *, nobody: bool) -> Cause | None:
    """Return a cause that names the tool outside the chain that wrote the first failure line, or None.

    If no tool of the chain wrote the log, the lines above the failure are searched too.
    """
    tools = {tool.id: tool for tool in catalog.tools if tool.foreign}
    # A run that goes on after a doubt, or long after a failure, was not stopped by it.
    crash = next((line.line for line, _ in pairs if _DIED.match(line.text)), 0)
    first = next((line.line for line, _ in pairs if line.trouble == "failure" and crash - line.line < 50), 0)
    ordered = sorted((pair for pair in pairs if pair[0].line >= first), key=lambda pair: pair[0].trouble != "failure")
    for line, event in ordered:
        if event.tool in tools:
            return _beside(line, tools[event.tool], catalog)
    for line, _ in ordered[:10] if nobody else ():  # the tool shows above the first lines, or nowhere
        tool = _unknown_package(line, catalog)
        above = (speaker((text,), [*tools.values()]) for text in reversed(line.before))
        if tool or (tool := next(filter(None, above), None) or _named(_NAMES_ITSELF.match(line.text))):
            return _beside(line, tool, catalog)
    return None


def _unknown_package(line: ErrorLine, catalog: Catalog) -> Tool | None:
    """Return the unknown package that owns the last frame above an exception, None if there is none."""
    frame = _INNERMOST.search("\n".join(line.before))
    return None if frame and speaker((frame[0],), catalog.tools) else _named(frame)


def _named(own: re.Match[str] | None) -> Tool | None:
    if own is None or own[1].partition(".")[0] in sys.stdlib_module_names:
        return None
    return Tool("program", own[1], foreign=True, drives_others=True)


def _beside(
    line: ErrorLine, tool: Tool, catalog: Catalog, detail: str = "", way_out: str = "", source: tuple[str, ...] = ()
) -> Cause:
    """Return the cause that names a failure of a tool outside the chain, with its way out if its kind is known.

    If the line names a part of the chain, the answer says so: it is only a symptom then.
    """
    first = f"its first error is {line.text[:_LONGEST_NAME]!r}" + (f"; {detail}" if detail else "")
    scope = "and no tool of the NPU speaks here" if tool.drives_others else "not of the way of a model onto the NPU"
    if part := speaker((line.text,), [other for other in catalog.tools if not other.foreign]):
        scope = "at a part of the way of a model onto the NPU"
    row = KnownError(
        id=f"foreign/{tool.id}",
        cause=f"this is a failure of {tool.name}, {scope}: {first}",
        workaround="; ".join(filter(None, (way_out, tool.advice))) or f"look it up where {tool.name} is documented",
        source=tuple(dict.fromkeys((*tool.source, *source))) or ("the form of its lines",),
        confidence=Confidence.INFERRED,
        symptom=line.text,
        root="symptom" if part else "cause",
        stage=tool.stage,
    )
    return _cause(line, row, f"by whose code fails; {_NO_ROW}")


def _cause(line: ErrorLine, row: KnownError, because: str) -> Cause:
    return Cause(
        error=row, certainty="likely", count=line.count, hits=(Hit(line=line.line, text=line.text),), because=because
    )
