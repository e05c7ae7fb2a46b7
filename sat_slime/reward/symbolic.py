"""Equality of parsed mathematics. Only the worker processes import this: parsing and evaluating may take for ever.

latex2sympy2_extended parses by a grammar. Its ways to Python's `eval` are sympy's reading of number strings and its
`nsimplify` of what stands in \\gcd and \\lcm; `_Reader` replaces both by exact rationals. math-verify compares sets and
inequalities; scalars and equations are compared here, at rational points, where a wrong answer needs no `simplify`.
"""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Iterator
from fractions import Fraction

import sympy
from latex2sympy2_extended import latex2sympy2
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify import grader
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from sat_slime.reward.structure import CLOCK, OR, Literal, case_tells, nesting, read_literal, split_list

MAX_BITS = 2**17
"""The largest size of numbers that are worked out: some 40,000 digits."""
MAX_NESTING = 10
"""The most brackets in brackets: the grammar's parser takes up to a second for twelve, and twice that for each more."""
MAX_UNIONS = 10
"""The most signs of unions and intersections: sympy compares each set with each, in each part of a union."""
MAX_ABSOLUTE = 3
"""The most absolute values in an inequality that is solved: each doubles the cases."""
_DIGITS = 30
_POINTS = 3
_NORMALIZATION = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")

_UNION = re.compile(r"\\(?:cup|cap|setminus)(?![a-zA-Z])")
_ORDER = re.compile(r"[<>]|\\(?:le|ge|ne)(?![a-zA-Z])")
_MISREAD = re.compile(
    r"[a-zA-Z}]\s*(?:'|\^\s*\{?\s*\\prime)|(?<![a-zA-Z])[fghFGH]\s*\^\s*\{?\s*-\s*1\s*\}?\s*\(|"
    r"(?<![\w^.])(?<!frac )(?<!sqrt )(?<!binom )[0-9]+\s+[0-9]+(?![0-9]|\s*[/^])"
)
"""Matches what the grammar reads as something else: f' as f, f^{-1}(x) as 1/f(x), and 3 5 as 8."""
_FUNCTION = re.compile(r"(?<![a-zA-Z\\])(ln|log|exp|(?:arc)?(?:sin|cos|tan)|cot|sec|csc)(?![a-zA-Z])")
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])(?=\s*[^\s+-])")
_UNEVALUATED = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)


class Refused(ValueError):
    """Mathematics that is not worked out. Its text is the reason: `too_large`, `unevaluated` or `undefined`."""


def equivalent(answer: str, label: str, rounding: Literal | None) -> str:
    """Return `symbolic`, or the reason why both are not equal. `rounding` is the decimal among both, which may stand
    for the number that it rounds."""
    wanted = _read_conditions(label)
    if isinstance(wanted, str):
        return f"{wanted}_label" if wanted in ("unparsed", "undefined") else wanted
    given = _read_conditions(answer)
    if isinstance(given, str):
        return given
    try:
        if _is_solved(wanted) and not _is_solved(given):
            return "different"  # (2, 3) is the answer to x^2 - 5x + 6 < 0
        equal = _equal_sets(given, wanted) or _equal(given, wanted, rounding) or _equal_complex(given, wanted)
        return "symbolic" if equal else "different"
    except (ArithmeticError, AttributeError, NotImplementedError, RecursionError, TypeError, ValueError):
        return "different"  # both are of kinds that cannot be compared, such as a set and a number


def _is_solved(conditions: sympy.Basic) -> bool:
    """Return whether each relation in it, where it has any, is one of a symbol, or its absolute value, to a number; a
    line is also written as x - 2 = 0."""
    for left, right in (relation.args for relation in conditions.atoms(Relational)):
        side, other = (right, left) if right.free_symbols else (left, right)
        added, unknown = side.as_independent(*side.free_symbols, as_Add=True)
        unknown = unknown.args[0] if isinstance(unknown, sympy.Abs) else unknown
        if other.free_symbols or not unknown.is_Symbol or (added and other):
            return False
    return True


@functools.lru_cache(maxsize=1024)
def read(text: str) -> sympy.Basic | str:
    """Return the parsed text, or the reason why there is none: `unparsed`, or that of a Refused."""
    try:
        return _parse(text)
    except MemoryError:
        raise  # the worker ends with it
    except Refused as refused:
        return str(refused)
    except Exception:  # the parser raises bare Exceptions, and whatever sympy raises
        return "unparsed"


def _read_conditions(text: str) -> sympy.Basic | str:
    """Reads a text as `read` does, and also inequalities that are joined by `or` or by commas."""
    alternatives = OR in text
    parts = text.split(OR) if alternatives else split_list(text)[1]
    if len(parts) == 1 or not all(_ORDER.search(part) for part in parts):
        return read(text)
    conditions = [read(part) for part in parts]
    if reason := next((part for part in conditions if isinstance(part, str)), None):
        return reason
    if not all(isinstance(part, Boolean) for part in conditions):
        return "unparsed"
    return sympy.Or(*conditions) if alternatives else sympy.And(*conditions)


def _parse(text: str) -> sympy.Basic:
    if (literal := read_literal(text)) is not None:
        return sympy.Rational(literal.value)
    if nesting(text) > MAX_NESTING or len(_UNION.findall(text)) > MAX_UNIONS:
        raise Refused("too_large")
    if CLOCK.search(text) or _MISREAD.search(text):
        raise ValueError("12:00 is no quotient, and f' is not f")
    latex = normalize_latex(_FUNCTION.sub(r"\\\1", text), _NORMALIZATION)
    config = latex2sympy2.ConversionConfig(lowercase_symbols=not case_tells(text))
    parsed = _Reader(is_real=not grader.should_treat_as_complex(latex), config=config).parse(latex)
    parsed = parsed.as_immutable() if isinstance(parsed, sympy.MatrixBase) else parsed
    if not isinstance(parsed, sympy.Basic):
        raise ValueError(f"parsed as {type(parsed).__name__}")
    if parsed.has(*_UNEVALUATED):
        raise Refused("unevaluated")
    _check_size(parsed)
    _check_defined(parsed)
    return parsed


def _exact_number(text: str) -> sympy.Rational:
    if (literal := read_literal(text.strip().replace(",", ""))) is None:
        raise ValueError(f"not a number: {text[:80]!r}")
    return sympy.Rational(literal.value)


class _Reader(latex2sympy2._Latex2Sympy):
    parse_number = staticmethod(_exact_number)

    def handle_gcd_lcm(self, f: str, args: list[sympy.Expr]) -> sympy.Expr:
        """Works it out for rational numbers; otherwise it stays a function, whatever the order of its arguments."""
        for argument in args:
            _check_size(argument)
        values = [argument.doit() for argument in args]
        if not all(isinstance(value, sympy.Rational) for value in values):
            return sympy.Function(f)(*sorted(values, key=sympy.default_sort_key))
        above, below = (math.gcd, math.lcm) if f == "gcd" else (math.lcm, math.gcd)
        return sympy.Rational(above(*(int(value.p) for value in values)), below(*(int(value.q) for value in values)))


latex2sympy2.Number = _exact_number
grader.TIMEOUT_WARNING_SHOWN = True  # it would warn that it may hang without its own alarm: this process may hang


def _check_defined(expression: sympy.Basic) -> sympy.Basic:
    """Carries out an expression's operations, from the inside. Raises Refused at the first that has no value."""
    arguments = [_check_defined(part) if isinstance(part, sympy.Basic) else part for part in expression.args]
    try:
        value = expression.func(*arguments) if arguments else expression
    except ZeroDivisionError:
        raise Refused("undefined") from None
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return expression  # it relates things that have no order, or the like
    if value in (sympy.nan, sympy.zoo) or isinstance(value, sympy.AccumBounds) or _divides_by_zero(value):
        raise Refused("undefined")
    return value


def _divides_by_zero(power: sympy.Basic) -> bool:
    """Return whether a power divides by a zero that sympy does not see, such as a difference of equal roots."""
    over_sum = isinstance(power, sympy.Pow) and power.exp.is_extended_negative and isinstance(power.base, sympy.Add)
    return bool(over_sum and power.base.is_number and abs(sympy.N(power.base, _DIGITS)) < sympy.Float(10) ** -60)


def _check_size(expression: sympy.Basic) -> None:
    if _bits(expression) > MAX_BITS:
        raise Refused("too_large")


def _bits(expression: sympy.Basic) -> float:
    """Return an upper bound for the bits of an expression's value; a variable counts as one."""
    if isinstance(expression, sympy.Rational):
        return float(max(abs(expression.p).bit_length(), expression.q.bit_length()))
    parts = [_bits(part) for part in expression.args if isinstance(part, sympy.Basic)]
    inner = max(parts, default=1.0)
    if isinstance(expression, (sympy.Add, sympy.Mul)):
        return sum(parts)
    if isinstance(expression, (sympy.factorial, sympy.factorial2, sympy.gamma, sympy.binomial, sympy.subfactorial)):
        return 2.0**inner * inner if inner < 64 else math.inf
    is_power = isinstance(expression, sympy.Pow) and expression.base not in (0, 1, -1)
    if is_power or isinstance(expression, (sympy.exp, sympy.sinh, sympy.cosh)):
        exponent, times = expression.args[-1], 1.0
        if exponent.is_number:  # the size of a fraction, and an upper bound for that of another number
            times = math.inf if parts[-1] >= 64 else abs(float(exponent)) if exponent.is_Rational else 2.0 ** parts[-1]
        return max((parts[0] if is_power else 1.5) * max(times, 1.0), parts[-1])
    return inner


def _equal(given: sympy.Basic, wanted: sympy.Basic, rounding: Literal | None) -> bool:
    if given == wanted:
        return True
    if isinstance(given, sympy.MatrixBase) and isinstance(wanted, sympy.MatrixBase):
        pairs = zip(given.flat(), wanted.flat(), strict=False)
        return given.shape == wanted.shape and all(_equal(a, b, None) for a, b in pairs)
    if isinstance(given, sympy.Expr) and isinstance(wanted, sympy.Expr):
        if given.is_number and wanted.is_number:
            return _equal_numbers(given, wanted, rounding)
        if (decided := _equal_at_points(given, wanted)) is not None:
            return decided
    relations = isinstance(given, Relational) and isinstance(wanted, Relational)
    if relations and not given.free_symbols | wanted.free_symbols:
        return False  # 1 < 2 and 3 < 4 are both true, and nothing else
    equations = isinstance(given, sympy.Eq) and isinstance(wanted, sympy.Eq)
    if equations and _is_multiple(given.lhs - given.rhs, wanted.lhs - wanted.rhs):
        return True
    if not grader.verify(wanted, given, allow_set_relation_comp=True, timeout_seconds=None):
        return False
    # Two equations without solutions are not one.
    return not equations or bool(sympy.solve(wanted, wanted.free_symbols))


def _equal_sets(given: sympy.Basic, wanted: sympy.Basic) -> bool:
    """Compares inequalities in one variable by their solutions, which may also be written as a set."""
    if not any(isinstance(side, Boolean) and not isinstance(side, sympy.Eq) for side in (given, wanted)):
        return False
    names = {symbol.name for symbol in given.free_symbols | wanted.free_symbols}
    if len(names) != 1 or any(len(side.atoms(sympy.Abs)) > MAX_ABSOLUTE for side in (given, wanted)):
        return False
    sets = [side.as_set() if isinstance(side, Boolean) else side for side in (given, wanted)]
    return all(isinstance(found, sympy.Set) for found in sets) and sets[0] == sets[1]


def _equal_complex(given: sympy.Basic, wanted: sympy.Basic) -> bool:
    """Compares with `i` as the imaginary unit; until here it was a letter."""
    units = {symbol: sympy.I for symbol in given.free_symbols | wanted.free_symbols if symbol.name == "i"}
    return bool(units) and _equal(given.xreplace(units), wanted.xreplace(units), None)


def _is_multiple(given: sympy.Expr, wanted: sympy.Expr) -> bool:
    """Return whether one expression is the other times a number."""
    both = isinstance(given, sympy.Expr) and isinstance(wanted, sympy.Expr)
    if not both or given.free_symbols != wanted.free_symbols:
        return False
    mine, theirs = next(_values(given, wanted), (0, 0))
    return bool(mine != 0 != theirs and _equal_at_points(given * theirs, wanted * mine))


def _equal_numbers(given: sympy.Expr, wanted: sympy.Expr, rounding: Literal | None) -> bool:
    """Return whether two numbers are equal: numerically, and then exactly or to many more digits."""
    mine, theirs = (sympy.N(number.doit(), _DIGITS) for number in (given, wanted))
    if not (mine.is_number and theirs.is_number) or any(number.has(sympy.nan, sympy.zoo) for number in (mine, theirs)):
        return False
    if mine.has(sympy.oo, -sympy.oo) or theirs.has(sympy.oo, -sympy.oo):
        return mine == theirs
    if not _close(mine, theirs, _DIGITS - 5):
        if rounding is None or not (mine.is_real and theirs.is_real):
            return False
        values = [Fraction(str(sympy.Float(number, _DIGITS))) for number in (mine, theirs)]
        return any(rounding.rounds(value) for value in values if value != rounding.value)
    difference = given.doit() - wanted.doit()
    if difference.is_zero:
        return True
    if difference.is_Rational:
        return False  # also where both are so large that the difference is lost beside them
    scale = min(max(abs(mine), abs(theirs)), 1)
    return bool(abs(sympy.N(difference, _DIGITS)) <= scale * sympy.Float(10) ** -60) or difference.equals(0) is True


def _close(mine: sympy.Expr, theirs: sympy.Expr, digits: int) -> bool:
    scale = max(abs(mine), abs(theirs))
    return scale == 0 or bool(abs(mine - theirs) <= scale * sympy.Float(10) ** -digits)


def _equal_at_points(given: sympy.Expr, wanted: sympy.Expr) -> bool | None:
    """Return whether two expressions have the same values at rational points; None where too few points give values."""
    if given.atoms(sympy.core.function.AppliedUndef) or wanted.atoms(sympy.core.function.AppliedUndef):
        return None
    for agreed, (mine, theirs) in enumerate(_values(given, wanted), 1):
        if not _close(mine, theirs, _DIGITS - 10):
            return False
        if agreed == _POINTS:
            return True
    return None


def _values(given: sympy.Expr, wanted: sympy.Expr) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """Yields values of both at rational points, where both have some."""
    symbols = sorted(given.free_symbols | wanted.free_symbols, key=str)
    if len({symbol.name for symbol in symbols if isinstance(symbol, sympy.Symbol)}) != len(symbols):
        return  # one is a matrix, or one name stands for a real and for a complex number
    rng = random.Random(0)
    for attempt in range(4 * _POINTS):
        bound = 1 if attempt % 2 else 8
        point = {symbol: sympy.Rational(rng.randint(-997 * bound, 997 * bound), 499) for symbol in symbols}
        values = [sympy.N(expression.subs(point).doit(), _DIGITS) for expression in (given, wanted)]
        if all(value.is_number and value.is_finite for value in values):
            yield values[0], values[1]


def equal_expressions(answer: str, label: str, tolerance: float | None) -> bool:
    """Return whether both are scalar expressions that are equal, or have values that are, to a relative tolerance."""
    try:
        if r"\ln" in label:  # PRIME's \log is the natural one
            answer = re.sub(r"\\log(?!\s*_|[a-zA-Z])", r"\\ln", answer)
        given, wanted = (read(_PLUS_MINUS.sub(r"+\\varpi ", text)) for text in (answer, label))  # any symbol
        if not all(isinstance(side, sympy.Expr) and not side.is_Matrix for side in (given, wanted)):
            return False
        if _equal(given, wanted, None):
            return True
        return tolerance is not None and math.isclose(sympy.N(given), sympy.N(wanted), rel_tol=tolerance)
    except MemoryError:
        raise
    except Exception:  # as in `read`; comparing values may raise anything too
        return False
