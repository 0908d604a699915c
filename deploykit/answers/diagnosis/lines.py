"""Cuts a log of any size into blocks of lines, in bounded memory; it looks for nothing."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import IO

from msgspec import Struct

__all__ = ["CONTEXT_LINES", "Block", "blocks", "text_around"]

CONTEXT_LINES = 16
"""How many lines around a line are looked at together."""

_CHUNK = 1 << 18  # a longer line is a dump; it is cut, so that memory stays bounded
_LINES_OF_SCREEN = 600  # the most characters of a line that are shown
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_PASTED = re.compile(rb"\[\d\d?(?:;\d{1,3})*m")  # colours that lost their escape
_SYSTEM = """\
段错误=Segmentation fault
核心已转储=core dumped
吐核=core dumped
已放弃=Aborted
已杀死=Killed
总线错误=Bus error
非法指令=Illegal instruction
没有那个文件或目录=No such file or directory
没有该文件或目录=No such file or directory
没有那个设备=No such device
权限不够=Permission denied
不允许的操作=Operation not permitted
无法分配内存=Cannot allocate memory
输入/输出错误=Input/output error
设备或资源忙=Device or resource busy
设备上没有空间=No space left on device
无效的参数=Invalid argument
拒绝连接=Connection refused
连接超时=Connection timed out
无法打开共享对象文件=cannot open shared object file
未找到命令=command not found
找不到指定的模块=The specified module could not be found
找不到指定的程序=The specified procedure could not be found
系统找不到指定的文件=The system cannot find the file specified
系统找不到指定的路径=The system cannot find the path specified
动态链接库(DLL)初始化例程失败=A dynamic link library (DLL) initialization routine failed
不是有效的 Win32 应用程序=is not a valid Win32 application
不是内部或外部命令=is not recognized as an internal or external command
拒绝访问=Access is denied
Speicherzugriffsfehler=Segmentation fault
Speicherabzug geschrieben=core dumped
Datei oder Verzeichnis nicht gefunden=No such file or directory
Keine Berechtigung=Permission denied
Das angegebene Modul wurde nicht gefunden=The specified module could not be found
Zugriff verweigert=Access is denied
そのようなファイルやディレクトリはありません=No such file or directory
指定されたモジュールが見つかりません=The specified module could not be found
許可がありません=Permission denied
세그멘테이션 오류=Segmentation fault
그런 파일이나 디렉터리가 없습니다=No such file or directory
지정된 모듈을 찾을 수 없습니다=The specified module could not be found
허가 거부=Permission denied
Erreur de segmentation=Segmentation fault
Aucun fichier ou dossier de ce type=No such file or directory
Falha de segmentação=Segmentation fault
Arquivo ou diretório inexistente=No such file or directory
Violación de segmento=Segmentation fault
No existe el archivo o el directorio=No such file or directory
\ufeff=
←[m=
←=
‘='
’='
“="
”="
&lt;=<
&gt;=>
&quot;="
&apos;='
&#39;='
&#x27;='
&#x2F;=/
&amp;=&"""
_ENGLISH = dict(line.split("=") for line in _SYSTEM.splitlines())
_LOCAL = re.compile("|".join(map(re.escape, _ENGLISH)))
# Not the begin of a folder's name in a path of Windows; a literal comes first, as the search is fast then.
_ESCAPED = re.compile(rb"\\(?<!\\\\)(?:[rnt](?![a-z])|t(?=at ))")
_CARRIER = re.compile(
    rb'\{(?:"\w+": ?"[^"\\]*", ?)*"(?:msg|message|log|text)": ?"|'
    rb"(?:[\d:.,TZ+-]+[ T|]+){0,3}(?:##\[\w+\]|(?:- )?(?:[\w.-]+ +- +)?[\[(]?(?:INFO|DEBUG|NOTICE|WARN(?:ING)?)[\])]?"
    rb"(?:[ :-]+(?:[\w.-]+ ?:(?: |(?<=root:)))?)|(?:\d+ +){2}[VDIW] [^:\n]{1,40}: "
    rb"|[VDIW]/[^:\n]{1,40}\( *\d+\): |\d+-\d+ +\S+ +[\w.]+ +[VDIW] {1,2})"
)
_OF_ANOTHER = re.compile(
    rb"\n *(?:Traceback \(|File \"|at \w|#\d|[A-Z]\w*(?:Error|Exception)\b|\W{0,3}(?:E|ERROR|FATAL|WARNING)\b"
    rb"|[EF]\d{4}|Segm)|\n[ \t]{2,}\S|<[EWI]> |\[[EWF]:|\.c\w*:\d+"
)
_BEGINS = re.compile(
    rb"\W\n[A-Z]|.?\n"
    rb"(?:\W{0,3}(?:\d{1,4}[-:/.]\d\d|\d+\.\d+ms|[A-Z]{4,}\b|[EWIF]\d{4}|File \"|at |#\d|[\w.]*(?:Error|Exception)\b"
    rb"|(?:error|warning|fatal|info|note|failed)\b|Traceback|[EWID][ /]|\S+:\d+:\d+: )| *[%^]|[\[<{*>=|+-]|$)"
)
_OPEN = re.compile(rb"(?:[Ee]rror|ERROR|[Ff]ailed|[Rr]eason): *$|^(?:[A-Z]\w+ )?[Ee]rror at .+: *$|: Assertion *$")
_NEVER = re.compile(rb"\xff\xfe\xff\xfe")  # in no text; a literal is sought much faster than an empty lookahead
_MOST_WRAPPED = 1800
_SCREENS = (80, 100, 120, 132)
_WIDE = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class Block(Struct, frozen=True, kw_only=True):
    """Lines of a log, each with its number, counted from 1 by newline characters, as editors do.

    ``lines[start:stop]`` are new; ``last`` is the number of the last line that was read.
    """

    lines: list[bytes]
    numbers: list[int]
    start: int
    stop: int
    size: int
    last: int

    def before(self, index: int) -> tuple[str, ...]:
        """The texts of the lines above one; for a crash of Python, whose
        frames come after it, those below, nearest last.
        """
        near = self.lines[max(0, index - CONTEXT_LINES) : index]
        if self.lines[index].startswith(b"Fatal Python error"):
            near = self.lines[index + 1 : index + CONTEXT_LINES][::-1]
        return tuple(text_around(line, 0) for line in near)


def text_around(line: bytes, position: int, *, limit: int = _LINES_OF_SCREEN) -> str:
    """The part of a line to show or to read, cut around a position; a carriage return counts as a line end."""
    begin = max(0, position - limit // 2)
    begin = max(begin, 1 + line.rfind(b"\r", begin, position))
    end = line.find(b"\r", position, position + limit)
    return line[begin : position + limit if end < 0 else end].decode("utf-8", "replace").strip()


def blocks(stream: IO[bytes]) -> Iterator[Block]:
    """Reads a stream to its end, in blocks whose new lines follow each other without a gap.

    Colours and NUL bytes are dropped, curly quotation marks and entities of web pages become plain, system messages in
    other languages become English, UTF-16 with a byte order mark is transcoded. The last lines of a block are held back
    for the next one, so that the lines after each line are known.
    """
    held = list[bytes]()  # lines kept as context, then lines that are held back
    numbers = list[int]()
    start, first, size = 0, 1, 0
    for data in _whole_lines(stream):
        fresh = data.replace(b"\r\n", b"\n").split(b"\n")
        if data.endswith(b"\n"):
            fresh.pop()
        after = first + len(fresh)
        if b"\0" in data or len(fresh) < _MOST_WRAPPED:
            parts = [(number, part) for number, line in enumerate(fresh, first) for part in line.split(b"\0")]
            for number, line in _rejoined(parts):
                numbers.append(number)
                held.append(line)
        else:
            numbers += range(first, after)
            held += fresh
        first = after
        size += len(data)
        stop = max(start, len(held) - CONTEXT_LINES)
        if stop > start:
            yield Block(lines=held, numbers=numbers, start=start, stop=stop, size=size, last=first - 1)
            keep = max(0, stop - CONTEXT_LINES)
            held, numbers, start, size = held[keep:], numbers[keep:], stop - keep, 0
    if len(held) > start:
        yield Block(lines=held, numbers=numbers, start=start, stop=len(held), size=size, last=first - 1)


def _rejoined(pairs: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Lines of a short log that a terminal wrapped, put together again: each too full for the next one's first word.

    So are the words "error:" at a line's end and the reason in the line below.
    """
    width = max((len(line) for _, line in pairs), default=0)
    near = [len(line) for _, line in pairs if len(line) * 4 > width * 3]
    wide = 60 < width < 140
    hard = wide and len(near) <= 2 * near.count(width) > 2 * (width not in _SCREENS)
    joined, gap = pairs[:1], b"" if hard else b" "
    for (_, last), (number, line) in pairwise(pairs):
        fits = len(last) < width if hard else len(last) + len(line.split(b" ")[0]) < width or b" " not in last
        fits = (fits or not wide) and not _OPEN.search(last)
        if fits or line[:2] == last[:2] or _BEGINS.match((gap or last[-1:]) + b"\n" + line):
            joined.append((number, line))
        else:
            joined[-1] = (joined[-1][0], joined[-1][1] + gap + line)
    return joined


def _whole_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yields cleaned pieces that end with a line; a line without an end is cut, so that memory stays bounded."""
    rest, carrier = b"", None
    for chunk in chain(_bytes(stream), [b""]):
        rest += chunk
        if rest and (not chunk or len(rest) >= _CHUNK):
            cut = (chunk and rest.rfind(b"\n") + 1) or len(rest)
            data = _clean(rest[:cut])
            carrier = carrier or _carrier(data)
            yield carrier.sub(b"", data)
            rest = rest[cut:]


def _bytes(stream: IO[bytes]) -> Iterator[bytes]:
    chunk = stream.read(_CHUNK)
    encoding = _WIDE.get(chunk[:2])
    decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)("replace")
    chunk = chunk if decoder is None else chunk[2:]
    while chunk:
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")
        chunk = stream.read(_CHUNK)


def _carrier(data: bytes) -> re.Pattern[bytes]:
    """What a program that passes on another's lines puts before each: its time, its level, its name.

    It finds nothing if the lines differ, or if nothing after it shows that they are another's.
    """
    lines = [line for line in data.splitlines() if line.strip()]
    begin = _CARRIER.match(lines[0]) if lines else None
    if begin:
        found = re.compile(b"(?m)^" + re.sub(rb"\d+", rb"\\d+", re.escape(begin[0].rstrip())) + b" ?")
        calm = len(lines) > 2 and b"W" not in begin[0]
        if all(map(found.match, lines)) and (calm or _OF_ANOTHER.search(found.sub(b"", b"\n" + b"\n".join(lines)))):
            return found
    return _NEVER


def _clean(data: bytes) -> bytes:
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    data = _PASTED.sub(b"", data)
    # As text: an expression over bytes takes ten times as long if many bytes are not ASCII.
    if b"&" in data or not data.isascii():
        text = _LOCAL.sub(lambda said: _ENGLISH[said[0]], data.decode("utf-8", "surrogateescape"))
        data = text.encode("utf-8", "surrogateescape")
    return _ESCAPED.sub(b"\0", data.replace(b"\x00", b"").replace(b'\\"', b'"'))
