"""Equality of parsed mathematics. Imported by the worker processes alone: parsing and evaluating may take for ever.

latex2sympy2_extended parses by a grammar. Its one way to Python's `eval` is sympy's reading of number strings, which
`_Reader` replaces by exact rationals. math-verify compares relations, sets and matrices; scalars are compared here, at
rational points, where a wrong answer needs no `simplify`.
"""

from __future__ import annotations

import functools
import math
import random
from fractions import Fraction

import sympy
from latex2sympy2_extended import latex2sympy2
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify import grader

from sat_slime.rollout.reward.literals import Literal, read_literal
from sat_slime.rollout.reward.structure import nesting

MAX_BITS = 2**17
"""Size of the numbers that may be worked out: some 40,000 digits."""
MAX_NESTING = 25
"""Brackets in brackets: the grammar's parser takes seconds for a hundred."""
_DIGITS = 30
_POINTS = 3
_NORMALIZATION = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")


_UNEVALUATED = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)


class Refused(ValueError):
    """Mathematics that is not worked out. Its text is the reason: `too_large` or `unevaluated`."""


def equivalent(answer: str, label: str, rounding: Literal | None) -> str:
    """`symbolic` or why not. `rounding`: the decimal literal among both, which may stand for what it rounds."""
    try:
        wanted = _parse(label)
    except MemoryError:
        raise  # the worker ends with it
    except Refused as refused:
        return str(refused)
    except Exception:  # the parser raises bare Exceptions, and whatever sympy does
        return "unparsed_label"
    try:
        given = _parse(answer)
    except MemoryError:
        raise  # the worker ends with it
    except Refused as refused:
        return str(refused)
    except Exception:
        return "unparsed"
    try:
        return "symbolic" if _equal(given, wanted, rounding) else "different"
    except (ArithmeticError, AttributeError, NotImplementedError, RecursionError, TypeError, ValueError):
        return "different"  # of kinds that cannot be compared, such as a set and a number


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> sympy.Basic:
    literal = read_literal(text)
    if literal is not None:
        return sympy.Rational(literal.value.numerator, literal.value.denominator)
    if nesting(text) > MAX_NESTING:
        raise Refused("too_large")
    latex = normalize_latex(text, _NORMALIZATION)
    parsed = _Reader(is_real=not grader.should_treat_as_complex(latex)).parse(latex)
    if not isinstance(parsed, (sympy.Basic, sympy.MatrixBase)):
        raise ValueError(f"parsed as {type(parsed).__name__}")
    if parsed.has(*_UNEVALUATED):
        raise Refused("unevaluated")
    _check_size(parsed)
    return parsed


class _Reader(latex2sympy2._Latex2Sympy):
    def parse_number(self, text: str) -> sympy.Rational:
        return _exact_number(text)


def _exact_number(text: str) -> sympy.Rational:
    literal = read_literal(text.strip().replace(",", ""))
    if literal is None:
        raise ValueError(f"not a number: {text[:80]!r}")
    return sympy.Rational(literal.value.numerator, literal.value.denominator)


latex2sympy2.Number = _exact_number
grader.TIMEOUT_WARNING_SHOWN = True  # that without its own alarm it may hang: this process may


def _check_size(expression: sympy.Basic) -> None:
    for element in expression.flat() if isinstance(expression, sympy.MatrixBase) else (expression,):
        if _bits(element) > MAX_BITS:
            raise Refused("too_large")


def _bits(expression: sympy.Basic) -> float:
    """A bound for the bits of what the expression evaluates to; a variable counts as one."""
    if isinstance(expression, sympy.Rational):
        return float(max(abs(expression.p).bit_length(), expression.q.bit_length()))
    parts = [_bits(part) for part in expression.args if isinstance(part, sympy.Basic)]
    inner = max(parts, default=1.0)
    if isinstance(expression, sympy.Pow):
        return _power_bits(expression, parts)
    if isinstance(expression, (sympy.factorial, sympy.factorial2, sympy.gamma, sympy.binomial, sympy.subfactorial)):
        return 2.0**inner * inner if inner < 64 else math.inf
    if isinstance(expression, (sympy.Add, sympy.Mul)):
        return sum(parts)
    return inner


def _power_bits(power: sympy.Pow, parts: list[float]) -> float:
    base, exponent = power.args
    if isinstance(exponent, sympy.Rational):
        size = abs(float(exponent)) if parts[1] < 64 else math.inf
    elif exponent.is_number:
        size = 2.0 ** parts[1] if parts[1] < 64 else math.inf
    else:
        size = 1.0
    return parts[0] + parts[1] if base in (0, 1, -1) else max(parts[0] * max(size, 1.0), parts[1])


def _equal(given: sympy.Basic, wanted: sympy.Basic, rounding: Literal | None) -> bool:
    if given == wanted:
        return True
    if isinstance(given, sympy.Expr) and isinstance(wanted, sympy.Expr):
        if given.is_number and wanted.is_number:
            return _equal_numbers(given, wanted, rounding)
        decided = _equal_at_points(given, wanted)
        if decided is not None:
            return decided
    if isinstance(given, sympy.MatrixBase) and isinstance(wanted, sympy.MatrixBase):
        if given.shape != wanted.shape:
            return False
        return all(_equal(a, b, None) for a, b in zip(given.flat(), wanted.flat(), strict=True))
    return bool(grader.verify(wanted, given, allow_set_relation_comp=True, timeout_seconds=None))


def _equal_numbers(given: sympy.Expr, wanted: sympy.Expr, rounding: Literal | None) -> bool:
    """Numerically different is different; numerically the same has to be so exactly, or by many more digits."""
    mine, theirs = (sympy.N(number.doit(), _DIGITS) for number in (given, wanted))
    if not (mine.is_number and theirs.is_number) or mine.has(sympy.nan, sympy.zoo):
        return False
    if mine.has(sympy.oo, -sympy.oo) or theirs.has(sympy.oo, -sympy.oo):
        return mine == theirs
    if not _close(mine, theirs, _DIGITS - 5):
        return rounding is not None and _rounds(rounding, mine, theirs)
    difference = given.doit() - wanted.doit()
    if difference.is_zero:
        return True
    scale = max(abs(mine), abs(theirs))
    return bool(abs(sympy.N(difference, _DIGITS)) <= scale * sympy.Float(10) ** -60) or difference.equals(0) is True


def _rounds(rounding: Literal, mine: sympy.Expr, theirs: sympy.Expr) -> bool:
    if not (mine.is_real and theirs.is_real):
        return False
    values = [Fraction(str(sympy.Float(number, _DIGITS))) for number in (mine, theirs)]
    return any(rounding.rounds(value) for value in values if value != rounding.value)


def _close(mine: sympy.Expr, theirs: sympy.Expr, digits: int) -> bool:
    scale = max(abs(mine), abs(theirs))
    return scale == 0 or bool(abs(mine - theirs) <= scale * sympy.Float(10) ** -digits)


def _equal_at_points(given: sympy.Expr, wanted: sympy.Expr) -> bool | None:
    """Whether two expressions have the same values at rational points; None: there are too few where they have any."""
    if given.atoms(sympy.core.function.AppliedUndef) or wanted.atoms(sympy.core.function.AppliedUndef):
        return None
    symbols = sorted(given.free_symbols | wanted.free_symbols, key=str)
    if any(not isinstance(symbol, sympy.Symbol) for symbol in symbols):
        return None  # a matrix
    names = {symbol.name for symbol in symbols}
    if len(names) != len(symbols):
        return None  # one name, once real and once complex
    rng, agreed = random.Random(0), 0
    for attempt in range(4 * _POINTS):
        bound = 1 if attempt % 2 else 8
        point = {symbol: sympy.Rational(rng.randint(-997 * bound, 997 * bound), 499) for symbol in symbols}
        values = [sympy.N(expression.subs(point).doit(), _DIGITS) for expression in (given, wanted)]
        if not all(value.is_number and value.is_finite for value in values):
            continue
        if not _close(values[0], values[1], _DIGITS - 10):
            return False
        agreed += 1
        if agreed == _POINTS:
            return True
    return None


def equal_expressions(answer: str, label: str, tolerance: float | None) -> bool:
    """Whether both are scalar expressions that are equal, or have values that are, to a relative tolerance."""
    try:
        given, wanted = _parse(answer), _parse(label)
        if not (isinstance(given, sympy.Expr) and isinstance(wanted, sympy.Expr)):
            return False
        if _equal(given, wanted, None):
            return True
        return tolerance is not None and math.isclose(sympy.N(given), sympy.N(wanted), rel_tol=tolerance)
    except MemoryError:
        raise
    except Exception:  # as above; the comparison of values too
        return False
