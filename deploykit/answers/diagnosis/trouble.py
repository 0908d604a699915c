"""Tells by its words whether a line of a log looks like trouble. It knows no tool and no cause.

A line that is missed here may lead to a false all-clear, one that is taken wrongly only to an honest "not understood".
So there are many words, and only lines that clearly state that nothing went wrong are passed over.
"""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["DOUBTS", "FAILURES", "LEVELS", "SOURCE", "TOLD", "Trouble", "trouble_of"]

Trouble = Literal["failure", "doubt"]
"""``failure``: a step, a load or a process failed. ``doubt``: a warning that a successful tool may print as well."""

FAILURES = (
    *("rror", "fail", "xception", "raceback", "atal", "anic", "bort", "dumped", " fault", "faulting", "illed"),
    *("illegal", "annot", "n't ", "an not ", "ould not", "nable to", "undefined", "ot found", "o such "),
    *("enied", "efused", "ritical", "imed out", "imeout", "ssert", "terminate called", "violation", "not selected"),
    *("<e> ", "mplemented", "of memory", "of_memory", "bad_alloc"),
    *("bad alloc", "not recognized", "does not ", "did not ", "orrupt", "err ", "err!", "err]", "err="),
    *("nhandled", "nsupport ", "ot support:", "o module", "o method", "o compatible", "status 0x"),
    *("not true", "ot registered", "return code", "exit", "returned ", " rc="),
    *("rash", "by signal ", "0 pc ", ": *** ", ".dll!", ".so!", "# c  [", "sigsegv", "sigabrt", "sigill", "ret="),
    *("sigbus", "o implementation found", "what():", "ssr ", "oops:", "bug: ", "rip: 0010:", "pc : ", "null pointer"),
    *("o space left", "ead-only file", "o route to", "y remote host", "roken pipe"),
)
"""Parts of lines about a failure, in small letters; other such lines have a level at their start (``LEVELS``)."""

DOUBTS = (
    *("warn", "nvalid", "upported", "issing", "ismatch", "is-match", "alling back", "allback", "alls back"),
    *("gnor", "ncompatible", "eprecated", " nan", "nan ", "=nan", "[nan", "nan,", "not exist", "nrecogni", "nknown"),
    *("xceed", "too ", "higher than", "ust be ", "equire", "xpect", "onflict"),
    *("nsufficient", "ot enough", "ndeclared", "in use", "busy", "0 devices", "0 nodes", "is not ", "are not "),
    *("was not ", "multiple times", "_lost", "+ size", "broadcast", "road cast", "used more than once", "is gated"),
    *("nder development", "ot executable", "only support", "not support", "dynamic shape", "devices found"),
    "nused arg",
    "uilt without",
)
"""Parts of lines about a doubt only, in small letters."""

LEVELS = re.compile(
    rb"^(?:[EF](?:\d{4,8})? \d\d:\d\d[:.]"  # glog, ExecuTorch
    rb"|\d\d-\d\d \d\d:\d\d:\d\d\.\d+ +\d+ +\d+ [EF] "  # logcat, threadtime
    rb"|[EF]/[\w.\- ]+[(:]|(?:[#\d. ]{1,14} )?E: [A-Z]"  # logcat, brief; apt
    rb"|(?:[\d:. -]{8,40} )?\[[EF]:[a-z]"  # ONNX Runtime's kind of prefix
    rb"| {0,8}#\d{1,2} +(?:0x[0-9a-f]{4,} |[\w:~<>]+ ?\(\w+=)"  # a frame of gdb or AddressSanitizer
    # A frame of the kernel, as journald or dmesg has it.
    rb"|(?:(?:\d{4}-\d\d-\d\dT|[A-Z]\w\w +\d\d? )[\d:.+-]{8,24} [\w.-]{1,60} kernel: )?"
    rb"(?:\[ *\d+\.\d+\](?:\[ *\w\d+\])?)? *(?:\? )?[\w.]+\+0x[\da-f]+/0x)"
)
"""Lines that report an error by a letter or a number at their start."""

SOURCE = re.compile(
    r"""^\s*(?:(?:std::)?(?:f?printf?|println|echo|puts|log(?:ger|ging)?\.\w+|console\.\w+)\ *[("']
    |(?:(?:\}\ *)?el(?:se\ )?if|if|while|for)\b.*(?:[:{]\s*$|;\ *then\b)|(?:\}\ *)?(?:except|catch)\b.*[:{]\s*$
    |(?:raise|throw)\ (?:std::)?[\w.]+\(|return\b.*;\s*$|assert\ .*,\ *f?["'].*["']\)?\s*$|RUN\ \S
    |[A-Za-z_][\w.]*(?<!Error)(?<!Exception)\(f?["'].*\);?\s*$|\w[\w.:>-]*(?:\(\w*\))?\ *<<\ *["'\w].*;\s*$
    |\#\ .*[{\\]\s*$|\w+\.add_\w+\(|--?\w[\w-]*(?:[ ,=]\S+)*\s{2,}\S|\s{20}(?!\S+_ERROR_|Failed)[A-Za-z(<"])""",
    re.VERBOSE,
)
"""A line of a program, a script or a list of options: text that might be printed, and was not."""

TOLD = re.compile(
    r"""(?:^|[\s,.;(])(?:I'(?:m|ve)|(?:I|[Ww]e)\ (?:also|alway|am|are|believe|built|can|could|did|do|don't|follow|g[eo]t
    |guess|ha[dv]e?|install|know|ran|run|saw|see|set|still|think|tr[iy]|us|wan|was|were)|[Mm]y\ [a-z])
    |\*\*\*\ .*\ Error\ \d+$|(?:completed\ with|failed:)\ exit\ code\ 1\b|did\ not\ complete\ successfully
    |\bELIFECYCLE|\bFATAL\ EXC|\ start\ activity""",
    re.VERBOSE,
)
"""A sentence in the reporter's own words, or a message passed on by a program that started
another: other lines tell more surely what happened.
"""

_HARMLESS = re.compile(
    r"""\b(?:0|no|zero|without(?:\ any)?)\ (?:\w+\ )?(?:errors?|fail(?:ures?|ed)?|exceptions?|mismatch(?:es)?)\b
    |\b\d+\ (?:critical\ )?warnings?\b
    |\b(?:(?:critical[- ])?warnings?|errors?|failures?|failed|exceptions?|mismatch(?:es)?|err|fallbacks?)
        \ *(?:count\ ?)?[:=]\s*0\b
        (?!x|\.\d)|(?:error|fail|exception)\w*["']\ ?:\ ?(?:0|false|null|none)\b
    |\b(?:error|err|status|return|exit)[ _](?:code|status)?\ ?[:=]?\ ?(?:0x0+|0)\b(?!\.\d)
    |\b(?:mean|max|maximum|min|average|avg|l1|l2|rms|mse|abs|absolute|relative|quantization|quantisation
        |reconstruction|rounding|approximation|total|sum\ of|least|squared?|numerical)
        [\w ]*[ _]errors?\b(?!\ (?:code|message))
    |\berror\ (?:rate|bound|tolerance|metric|analysis|threshold)
    |\b(?:if|why)\ .*\b(?:fails|failed|does\ not\ support)\b|:\ Could\ not\ collect$
    |^--\ (?:Performing|Looking|Check|Could\ NOT|Found|Warning:).*
    |(?:log|verbosity)[_ -]?(?:level|severity)[ =:'"]*(?:error|fatal|warning)
    |(?<!\S)--?\w[\w-]*(?:error|critical|exceptions|fail|fallback|errno|crash)[\w-]*|\w_fallback[:\]]\ |\berrors=[a-z]
    |^\s*warnings\.warn\(|^.*\.\.\.\ ?ok$|^nohup:\ ignoring\ input
    |\b(?:error|exception)s?\ (?:will|would|may|might|could)\ be\b""",
    re.IGNORECASE | re.VERBOSE,
)
_FAILURE = re.compile(
    r"""(?-i:\bERR\b|\[ERR|\bE\])|\b(?:(?:error|fatal|critical|panic)s?|panicked)\b|<E>|\[[EF]:
    |\w(?:Error|Exception|Failure|_error|_exception|_failed|_failure)\b|\bfail(?:s|ed|ing|ure|ures)?\b
    |\bFAIL(?:ED|URE)?_|_(?:FAIL|ERROR|FAILED|FAILURE)\b|(?-i:[A-Z]_ERROR_[A-Z])
    |traceback|\bexceptions?\b|\babort(?:ed|ing)?\b|core\ dumped|segmentation\ (?:fault|violation)|\bkilled\b
    |\b(?:page|bus|general|access)\ fault
    |illegal\ (?:hardware\ )?instruction|\bcan(?:not|'t|\ not)\b|\b(?:could|does(?!\ not\ support)|did)(?:\ not|n't)\b
    |unable\ to
    |undefined(?:\ (?:symbol|reference)|:\ )|(?:was|is|were)\ not\ (?:found|selected)|\bno\ such\b|not\ found\b
    |(?:permission|access)\ (?:is\ )?denied|avc:\ +denied|\brefused\b|timed\ out|\btimeout\b|\bassert(?:ion)?\b
    |terminate\ called|access\ violation|out\ of\ memory|OUT_OF_MEMORY|bad[_ ]alloc|is\ not\ recognized
    |\b(?:return|exit)(?:ed)?\ ?(?:with\ )?(?:code|status|value)?[ :=]*(?:0x0*[1-9a-f]|-?[1-9])
    |\bnot\ registered\b|\berror_code=[1-9]
    |\bunhandled\b|\bunsupport\b|\bnot\ support:|\bno\ (?:module|method)\ named\b|\bwas\ not\ true\b
    |\bnot\ ?implemented|NOT_IMPLEMENTED|\bcorrupt|\bnon-zero\ (?:exit\ )?status\b
    |\bcrash(?:ed|es|ing)?\b|make(?:\[\d+\])?:\ \*\*\*|\bFaulting\ module|\#0?0\ +pc\ |\.(?:dll|so)!\S+.{0,3}\+
    |^lib\S+\.so!\w+::|\bwhat\(\):|\bby\ signal\ \d|\bSIG(?:SEGV|ABRT|ILL|BUS)\b|\bno\ implementation\ found
    |\bOops:|\bBUG:\ |\bSSR\ (?:detected|recovery)\b|^\#\ C\ +\[
    |\b(?:status|ret|rc|err)(?:\ ?[=:]\ ?|\ )(?:0x0*[1-9a-f]|-[1-9]|[1-9]\d{3,4}\b(?!\ \w*bytes))
    |\bno\ space\ left|\bread-only\ file\ system|\bno\ route\ to|\bclosed\ by\ remote\ host|\bbroken\ pipe
    |\bRIP:\ 0010:\w|\bpc\ :\ [a-z_.\w]+\+0x|\bnull\ pointer\ dereference|\bprotection\ fault""",
    re.IGNORECASE | re.VERBOSE,
)
_DOUBT = re.compile(
    r"""\bwarn(?:ing)?s?\b|\binvalid|\bunsupported|\bnot\ support|\bmissing\b|mis-?match
    |fall(?:ing|s)?[ -]?back|fallback|\bunder\ development|\bwith\ dynamic\ shape
    |\bignor(?:ed|ing)\b|\bunexpected|\bincompatible|\bdeprecated|\bnan\b|not\ exist
    |\bunrecogni[sz]ed|\bunknown\b(?!-)|\bexceed|\btoo\ (?:large|small|old|new)\b|\bhigher\ than\ (?:the|what)
    |\bmust\ be\b|\brequire[sd]?\b|\bexpect(?:ed|ing)\b|\bconflict|\binsufficient
    |\bnot\ (?:enough|compatible|executable)
    |\bundeclared|\b(?:already|is)\ (?:in\ use|busy)|\b0\ (?:devices\ found|nodes\ delegated)
    |\bno\ [\w ]{1,24}devices\ found\b|\bmultiple\ times
    |\bonly\ support(?:s|ed)\b|device_(?:lost|removed)|\boffset\ \d+\ \+\ size|\bbroad\ ?cast\b(?!\ support)
    |\bused\ more\ than\ once|\bunused\ argument|\bbuilt\ without\ |\bis\ gated
    |(?:is|are)\ not\ (?:a|an|equal|in|available|supported|found|defined|accessible)\b""",
    re.IGNORECASE | re.VERBOSE,
)


def trouble_of(line: str) -> Trouble | None:
    """Whether one line reports a failure or a doubt; None if it reports neither.

    >>> trouble_of("E0101 12:00:00.1 7 main.cc:3] nothing to add") 'failure' >>>
    trouble_of("conversion ended with 0 errors") is None True
    """
    if LEVELS.search(line.encode()) or _says(line, _FAILURE, FAILURES):
        return "failure"
    return "doubt" if _says(line, _DOUBT, DOUBTS) else None


def _says(line: str, pattern: re.Pattern[str], fragments: tuple[str, ...]) -> bool:
    # The expressions take a tenth of a millisecond, so only lines with one of their fragments are searched.
    folded = line.lower()
    said = any(fragment in folded for fragment in fragments) and pattern.search(line)
    return bool(said and pattern.search(_HARMLESS.sub(" ", line)))
