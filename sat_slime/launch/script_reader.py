"""Reads what a slime launch script would start, without running any of it.

Bash is read as far as launch scripts use it: arrays of flags, variables with defaults, `source`, whole-number
arithmetic, and the few commands whose output their words alone decide (`dirname`, `cd ... && pwd`, `seq`). What else a
value depends on leaves a mark in it, a character of Unicode's private area, and each mark has a reason.
"""

from __future__ import annotations

import ast
import io
import operator
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sat_slime.launch.secrets import is_secret

TRAINERS = ("train.py", "train_async.py")
MARK = re.compile("[\ue000-\uf8ef]")
_DOLLAR = "\uf8f0"
"""Stands for a `$` that bash takes for itself."""
_QUOTED = r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'"""
_COMMENT = re.compile(rf"({_QUOTED})|(?:(?<=[\s;])|^)#[^\n]*", re.DOTALL)
_CAT = re.compile(r"\$\(cat <<-?[ \t]*(\w+)(\n.*?\n)[ \t]*\1(\s*)\)", re.DOTALL)
_HEREDOC = re.compile(r"""<<-?[ \t]*(['"]?)(\w+)\1[^\n]*\n.*?\n[ \t]*\2(?=\s)""", re.DOTALL)
_LAYERS = re.compile(
    r"for \(\(i=0; *i<(?P<all>\w+); *i\+\+\)\); *do\s+if \(\( *i < (?P<dense>\w+) *\)\); *then\s+(?P<to>\w+)\+=\(0\)\s+"
    r"else\s+(?P=to)\+=\(1\)\s+fi\s+done(?P<more>\s+)printf -v (\w+) [^\n]*\{(?P=to)\[\*\]\}[^\n]*"
)
"""The loop of slime's models that says which layers have experts: 0 for the first ones, then 1."""
_STATEMENT = re.compile(rf"(?:{_QUOTED}|=\((?:{_QUOTED}|\$\([^)]*\)+|[^)\"'\\])*\)|[^\n;])+", re.DOTALL)
_ARRAY = re.compile(r"(?:(?:export|declare|local|readonly)\s+(?:-\w+\s+)*)?(\w+)(\+?)=\((.*)\)\s*", re.DOTALL)
_WHOLE_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_ARRAY_OR_NONE = re.compile(r"""\$\{(\w+)\[@\](?::?-|\+"?\$\{\1\[@\]\}"?)\}""")
"""`${NAME[@]:-}` and `${NAME[@]+"${NAME[@]}"}`, which are `${NAME[@]}` where it may be unset."""
_INNERMOST = re.compile(
    r"\$\(\((?P<number>[^$`]*?)\)\)(?!\))|\$\((?P<command>[^()$`]*)\)|`(?P<backquoted>[^`]*)`|"
    r"\$\{(?!\w+\[[@*]\]\})(?P<parameter>[^{}$`]*)\}|\$(?P<name>[A-Za-z_]\w*|[\d@*#?!$-])"
)
"""A substitution that has none inside."""
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv}


@dataclass(frozen=True)
class Word:
    """A word of the command, with the place where it stands, such as run.sh:12."""

    text: str
    place: str


def trainer_in(words: Sequence[Word]) -> int | None:
    """Return the number of the word that is slime's training file."""
    return next((at for at, word in enumerate(words) if os.path.basename(word.text) in TRAINERS), None)


class Script:
    """What a launch script would start, read from top to bottom. Raises OSError or UnicodeDecodeError."""

    def __init__(self, path: Path):
        self.command: list[Word] = []
        """The words of `ray job submit`, or of what starts the trainer without Ray's jobs."""
        self.notes: list[str] = []
        """What was left out in reading, each with its place."""
        self.reasons: list[str] = []
        """Why something cannot be read, by the number of its mark."""
        self.variables: dict[str, str] = {}
        self.arrays: dict[str, list[Word]] = {}
        self.files: list[Path] = []
        self.line = 0
        self.condition = ""
        self.read(path)
        self.command = [Word(word.text.replace(_DOLLAR, "$"), word.place) for word in self.command]

    def why(self, text: str) -> str:
        """Return the reasons of the marks in a value; empty where it has none."""
        return "; ".join(dict.fromkeys(self.reasons[ord(mark) - 0xE000] for mark in MARK.findall(text)))

    def mark(self, reason: str) -> str:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return chr(0xE000 + self.reasons.index(reason))

    def note(self, text: str) -> None:
        self.notes.append(f"{self.place()}: {text}")

    def place(self, further: int = 0) -> str:
        return f"{self.files[-1].name}:{self.line + further}"

    def read(self, path: Path) -> None:
        line, depth = self.line, 0
        self.files.append(path)
        text = re.sub("[\ue000-\uf8ff]", "", path.read_text(encoding="utf-8"))
        text = _CAT.sub(lambda cat: '"' + re.sub(r'([\\"])', r"\\\1", cat[2]) + cat[3] + '"', text)
        text = _HEREDOC.sub(lambda match: "\n" * match[0].count("\n"), text)
        text = _COMMENT.sub(lambda match: match[1] or "", text)
        text = _LAYERS.sub(lambda m: "\n" * m[0].count("\n") + f"{m[5]}=$(layers ${m['dense']} ${m['all']})", text)
        for match in _STATEMENT.finditer(text):
            self.line = text.count("\n", 0, match.start() + len(match[0]) - len(match[0].lstrip())) + 1
            statement = re.sub(r"^((then|else|do|\{)\s+)+", "", match[0].strip())
            first = re.split(r"\s", statement, maxsplit=1)[0]
            if first in ("if", "elif", "for", "while", "until", "case") or re.match(
                r"(function )?\w+\s*\(\)", statement
            ):
                depth += first != "elif"
                self.condition = statement
            elif first in ("fi", "done", "esac", "}"):
                depth = max(depth - 1, 0)
            elif statement:
                self.statement(statement, conditional=depth > 0)
        self.files.pop()
        self.line = line

    def statement(self, text: str, conditional: bool) -> None:
        if array := _ARRAY.fullmatch(text):
            name, more, words = array[1], array[2], self.words(array[3])
            if not conditional:
                self.arrays[name] = self.arrays.get(name, []) + words if more else words
            elif words:
                flags = " ".join(word.text for word in words if word.text.startswith("--"))
                self.note(f"{flags or name} depends on a condition: write it by hand where it holds")
            return
        try:
            words = self.words(text)
        except ValueError:  # a quotation that does not end
            self.note("this cannot be read, and is left out")
            return
        conditional = conditional or any(word.text in ("&&", "||") for word in words)
        while words and (words[0].text in ("export", "declare", "local", "readonly") or "=" in words[0].text):
            name, equals, value = words.pop(0).text.partition("=")
            if equals and name.removesuffix("+").isidentifier():
                before = self.variables.get(name[:-1], "") * name.endswith("+")
                self.assign(name.removesuffix("+"), before + value, conditional)
        trainer = trainer_in(words)
        if len(words) > 1 and words[0].text in ("source", "."):
            self.source(words[1].text)
        elif trainer and any("python" in word.text for word in words[:trainer]):
            self.command = words
        elif _WHOLE_ARRAY.match(text.lstrip('"')):
            self.note("these words belong to no command: the line before ends without a backslash")
        elif conditional and (adds := re.search(r"(\w+)\+?=\(", text)):
            self.note(f"{adds[1]} depends on a condition: write its flags by hand where it holds")

    def assign(self, name: str, value: str, conditional: bool) -> None:
        before = self.variables.get(name, "")
        known = before != "" and not MARK.search(before)
        if conditional and not known and re.search(rf"-z \"?\$\{{?{name}\b", self.condition):
            self.note(f"{name} is taken to be {value}, which it is where nothing else sets it")
        elif conditional and before != value:
            value = self.mark(f"{name} depends on a condition at {self.place()}")
        self.variables[name] = value

    def source(self, name: str) -> None:
        """Read a sourced file; of one that is not here, that of the script's own checkout."""
        tried = [Path(name)]
        tried += [above / "scripts/models" / tried[0].name for above in self.files[0].absolute().parents]
        found = None if MARK.search(name) else next((file for file in tried if file.is_file()), None)
        if found is None:
            self.note(f"{self.why(name) or f'{name} is not here'}: write by hand what it sets")
        elif found not in self.files:
            if found != tried[0]:
                self.note(f"{name} is not here, and {found} was read in its place")
            self.read(found)

    def words(self, text: str) -> list[Word]:
        """Return the words of a statement, those of an array for `${NAME[@]}`. Raises ValueError."""
        stream = io.StringIO(self.expanded(text.replace("\\\n", " \n")))
        lexer = shlex.shlex(stream, posix=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        words: list[Word] = []
        for token in iter(lexer.get_token, None):
            ended = stream.getvalue()[: stream.tell()].endswith("\n") and "\n" not in token
            array = _WHOLE_ARRAY.fullmatch(token)
            words += self.arrays.get(array[1], []) if array else [Word(token, self.place(lexer.lineno - 1 - ended))]
        return words

    def expanded(self, text: str) -> str:
        """Return the text with values in the place of variables and substitutions, its quotes as they are."""
        text = re.sub(_QUOTED, lambda match: match[0].replace("$", _DOLLAR) if match[0][0] in "\\'" else match[0], text)
        text = text.replace("\\$", _DOLLAR).replace("\\" + _DOLLAR, _DOLLAR)
        text = _ARRAY_OR_NONE.sub(r"${\1[@]}", text)
        while match := _INNERMOST.search(text):
            if match["number"] is not None:
                value = self.number(match["number"])
            elif match["command"] is not None:
                value = self.output(match["command"])
            elif match["backquoted"] is not None:
                value = self.mark("it is the output of a command")
            else:
                value = self.parameter(match["parameter"] or match["name"])
            text = text[: match.start()] + re.sub(r'([\\"])', r"\\\1", value.replace("\n", " ")) + text[match.end() :]
        return re.sub(r"\$\(\S*", lambda _: self.mark("it is the output of a command"), text)

    def parameter(self, text: str) -> str:
        """Return the value of NAME, `NAME:-default` or this file's name."""
        if text in ("BASH_SOURCE[0]", "BASH_SOURCE", "0"):
            return str(self.files[-1].absolute())
        match = re.fullmatch(r"(\w+)(?::?[-=](.*))?", text, re.DOTALL)
        if match is None:
            return "" if text in "@*" else self.mark(f"${{{text.split(':')[0]}}} cannot be read")
        name, default = match.groups()
        if is_secret(name):
            return self.mark(f"{name} is a secret: set it in the cluster's environment")
        if self.variables.get(name) or (name in self.variables and default is None):
            return self.variables[name]
        if default is None:
            return self.mark(f"{name} is not set in the script")
        return " ".join(shlex.split(default.replace('\\"', '"')))

    def output(self, text: str) -> str:
        """Return the output of a command that its words alone decide, such as $(dirname FILE)."""
        try:
            words = shlex.split(re.sub(r"[&12]?>\s*/dev/null|2>&1|\s--\s", " ", text.replace('\\"', '"')))
        except ValueError:
            words = []
        match [*map(str, words)]:
            case ["dirname" | "basename" as part, path] if not MARK.search(path):
                return str(getattr(os.path, part)(path))
            case ["cd", path, "&&", "pwd"] if not MARK.search(path):
                return os.path.abspath(path)
            case ["seq", *numbers] if len(numbers) == 3 and all(re.fullmatch(r"[1-9]\d{0,3}", n) for n in numbers):
                first, step, last = map(int, numbers)
                return " ".join(map(str, range(first, last + 1, step)))
            case ["layers", dense, layers] if (dense + layers).isdigit():
                return f"[{','.join(str(int(layer >= int(dense))) for layer in range(int(layers)))}]"
        return self.mark(f"$({(words or ['?'])[0]} ...) is the output of a command")

    def number(self, text: str) -> str:
        """Return the value of a sum, difference, product or quotient of whole numbers."""

        def calculated(node: ast.expr) -> int:
            if isinstance(node, ast.BinOp):
                return int(_OPERATORS[type(node.op)](calculated(node.left), calculated(node.right)))
            return int(ast.literal_eval(node))

        text = re.sub(r"[A-Za-z_]\w*", lambda name: self.parameter(name[0]), text)
        if marks := MARK.findall(text):
            return marks[0]
        try:
            return str(calculated(ast.parse(text.strip(), mode="eval").body))
        except (SyntaxError, KeyError, ValueError, TypeError, ZeroDivisionError):
            return self.mark(f"$(({text})) cannot be read")
