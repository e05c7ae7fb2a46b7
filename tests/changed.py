"""Which tests a change can break: what `pytest --changed [BASE]` runs, and what it leaves out.

A file stands on the modules that it imports, inside functions too, on those whose dotted names it has in strings, and
on files outside of the package that it names. A file of tests also stands on the module that it is named after, on the
conftest.py above it and, where it starts engines, on its whole part. Distances count these steps.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("sat_slime", "scripts", "bench", "tests")
ALWAYS = ("tests/test_architecture.py", "tests/test_documents.py")
"""They read the whole package and the documents."""
ANYTHING = ("pyproject.toml", "requirements/", "sat_slime/requirements/", "scripts/setup.sh", "scripts/test.sh")
"""What a change of these breaks is not to be seen in imports."""
FARTHEST = 2
"""Distance of the tests that run, beside all those of the parts that have changed."""
MOST = 40
"""Files of tests that run at that distance; where there are more, only those at distance 1 do."""


@dataclass(frozen=True)
class Choice:
    """Files of tests, by their paths below the root of the repository."""

    base: str
    changed: frozenset[str]
    chosen: frozenset[str]
    farthest: int
    left_out: frozenset[str]
    """They stand on what has changed, but farther away."""
    engines: frozenset[str]
    """Those with tests that start engines, among both."""

    def report(self, with_engines: bool) -> Iterator[str]:
        """Yield what ran and what did not, in lines. with_engines: whether tests that start engines ran."""
        yield f"changed against {self.base}: {listed(self.changed)}"
        near = f"at most {self.farthest} import{'s' * (self.farthest > 1)} away, and all of the changed parts"
        yield f"run: {len(self.chosen)} files of tests, {near}"
        if self.left_out:
            parts = Counter(sorted(Path(name).parts[1] for name in self.left_out))
            named = ", ".join(f"{part} {count}" for part, count in parts.most_common())
            yield f"left out: {len(self.left_out)} files that stand on them farther away ({named}): ./scripts/test.sh"
        if self.engines and not with_engines:
            yield f"left out unless -m engine names them: tests that start engines in {listed(self.engines)}"
        if anything := [name for name in sorted(self.changed) if name.startswith(ANYTHING)]:
            yield f"{listed(anything)} can break any test: ./scripts/test.sh"


def listed(names: Iterable[str], shown: int = 8) -> str:
    names = sorted(names)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def choose(root: Path, base: str) -> Choice:
    """Return the files of tests that what differs from `base` can break.

    Raises:
        ValueError: nothing differs, or git knows no such base.
    """
    changed = changed_files(root, base)
    if not changed:
        raise ValueError(f"nothing differs from {base}: name another base, as in --changed HEAD~1")
    graph = uses(root, changed)
    distance = standing_on(graph, changed)
    standing = {name for name in distance if name in graph and is_test(name)}
    own_parts = {Path(name).parts[1] for name in changed if name.startswith(("sat_slime/", "tests/"))}
    own = {name for name in standing if Path(name).parts[1] in own_parts}

    def near(farthest: int) -> set[str]:
        return {name for name in standing if distance[name] <= farthest}

    farthest = FARTHEST if len(near(FARTHEST)) <= MOST else 1
    chosen = near(farthest) | own | {name for name in ALWAYS if name in graph}
    engines = {name for name in standing if "mark.engine" in (root / name).read_text()}
    return Choice(
        base, frozenset(changed), frozenset(chosen), farthest, frozenset(standing - chosen), frozenset(engines)
    )


def changed_files(root: Path, base: str) -> set[str]:
    """Return the paths that differ between the working tree and where it left `base`, new files and removed ones too.

    Raises:
        ValueError: git knows no such base, or this is no checkout.
    """
    fork = git(root, "merge-base", base, "HEAD").strip()
    differing = git(root, "diff", "--name-only", "--no-renames", "-z", fork)
    new = git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return set(filter(None, (differing + new).split("\0")))


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"git {' '.join(arguments)}: {done.stderr.strip() or 'there is no common commit'}")
    return done.stdout


def is_test(path: str) -> bool:
    return path.startswith("tests/") and Path(path).name.startswith("test_")


def uses(root: Path, changed: Iterable[str]) -> dict[str, set[str]]:
    """Return for each Python file of the repository the files that it stands on, removed ones of `changed` too."""
    paths = {str(path.relative_to(root)): path for folder in FOLDERS for path in (root / folder).rglob("*.py")}
    texts = {name: path.read_text() for name, path in paths.items()}
    names = {name: set(dotted_names(text, name)) for name, text in texts.items()}
    modules = {dotted(name): name for name in {*paths, *changed} if re.match(r"sat_slime/.*\.py$", name)}
    helpers = {Path(name).stem: name for name in {*paths, *changed} if name.endswith(".py")} | {
        "sat_slime": "sat_slime/__init__.py"
    }
    outside = {name for name in changed if not name.startswith("tests/") and name not in modules.values()}
    exported = {
        dotted(name): {each.rpartition(".")[2]: each for each in names[name] if each.startswith("sat_slime.")}
        for name in names
        if name.endswith("/__init__.py")
    }

    def home(name: str) -> str | None:
        """The file that defines what has a dotted name: `sat_slime.config.load_config` is of config/loader.py."""
        if not name.startswith("sat_slime."):
            return helpers.get(name.partition(".")[0])
        module, attribute = name, ""
        while module not in modules and module:
            module, _, attribute = module.rpartition(".")
        source = exported.get(module, {}).get(attribute, name)
        return home(source) if source != name else modules.get(module)

    graph = {}
    for name, text in texts.items():
        found = {home(each) for each in names[name]}
        found |= {each for each in outside if mentions(text, each)}
        if name.startswith("tests/"):
            found |= {str(folder / "conftest.py") for folder in Path(name).parents} & paths.keys()
        if is_test(name):
            found |= {mirrored(name)} & paths.keys()
            if "mark.engine" in text:
                found |= {each for each in paths if each.startswith(f"sat_slime/{Path(name).parts[1]}/")}
        graph[name] = {each for each in found if each} - {name}
    # Its one fixture that imports anything starts engines.
    return graph | {"tests/conftest.py": set()}


def dotted_names(text: str, path: str) -> Iterator[str]:
    """Yield the dotted names that a file imports, and those of the package in its strings."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(Path(path).parts[: -node.level]) if node.level else ""
            source = ".".join(filter(None, [base, node.module]))
            yield from (f"{source}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"sat_slime(?:\.\w+)+", node.value)


def dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def mentions(text: str, path: str) -> bool:
    """Whether a file names another one, or the folder of the repository in which it is."""
    return Path(path).name in text or ("/" in path and f'"{Path(path).parts[0]}"' in text and path[:9] != "sat_slime")


def mirrored(test: str) -> str:
    """The module that a file of tests is named after."""
    folders = Path(test).parent.parts[1:]
    return str(Path("sat_slime", *folders, Path(test).name.removeprefix("test_")))


def standing_on(graph: Mapping[str, set[str]], changed: Iterable[str]) -> dict[str, int]:
    """Return what stands on the changed files, each with its distance: they have 0, and what imports them has 1."""
    above: dict[str, set[str]] = {}
    for name, below in graph.items():
        for each in below:
            above.setdefault(each, set()).add(name)
    distance = dict.fromkeys(changed, 0)
    waiting = list(distance)
    for name in waiting:  # grows as it is read
        for each in sorted(above.get(name, ())):
            if each not in distance:
                distance[each] = distance[name] + 1
                waiting.append(each)
    return distance
