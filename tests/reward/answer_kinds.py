r"""How models write right answers, and wrong ones that look alike: (label, response) pairs for the default mode."""

from __future__ import annotations

import random
from collections.abc import Iterator

RIGHT_ANSWERS = {
    "prose": [
        ("34", "Final Answer: The largest $n$ is 34."),
        ("34", "Final Answer: the number of such triples is $34$."),
        ("x \\le 2", "Thus $x <= 2$ is our answer."),
        ("12", "Hence there are 12 ways to do it."),
        ("12", "So the area of the triangle equals 12 square units."),
        ("7", "Therefore, the value of $k$ must be $7$."),
        ("7", "The answer to this question is therefore 7."),
        ("7", "I get 7 as the final answer."),
        ("34", "The maximum is 34, attained when x = 2."),
        ("34", "The maximum value of f when x is in [0, 1] is 34."),
        ("5", "We conclude that $x = 5$. This completes the proof."),
        ("5", "It follows that x = 5.\n\nI hope this helps!"),
        ("\\frac{3}{8}", "So the probability is $\\frac{3}{8}$ for each player."),
        ("3", "The answer is not 4 but 3."),
        ("odd", "Adding them shows that the sum is odd."),
        ("\\sqrt{2}", "The distance is\n\n\\[\n\\sqrt{2}\n\\]"),
        ("12", "Answer:\n$$\n12\n$$"),
        ("34", "First x = 3 and y = 4. Adding up, 34 is the answer."),
        ("18", "#### 18"),
        ("5", "The answer should be $5$ dollars."),
        ("1, 2", "The solutions are $1$ and $2$."),
        ("x + y = 2", "The line is given by $x + y = 2$."),
        ("34", "**Final Answer:** The sum equals **34**."),
        ("5 million", "The population is 5 million."),
        ("6", "So the number is 3!"),
        ("\\frac{37}{72}", "We get \\tfrac{1}{2} +\\! \\frac1{72}."),
    ],
    "left side": [
        ("1", "\\boxed{|AB|=1}"),
        ("|AB| = 1", "\\boxed{1}"),
        ("4, 5", "\\boxed{AB=4,CD=5}"),
        ("AB=4,CD=5", "\\boxed{4, 5}"),
        ("AB=4,CD=5", "\\boxed{CD=5, AB=4}"),
        ("\\angle ABC = 30^\\circ", "\\boxed{30}"),
        ("P(A) = \\frac12", "\\boxed{0.5}"),
        ("S_{ABC} = 6", "\\boxed{6}"),
        ("6", "\\boxed{S_{\\triangle ABC} = 6}"),
        ("\\overline{AB} = 7", "\\boxed{7}"),
        ("f(2) = 7", "\\boxed{7}"),
        ("\\text{Area} = 12", "\\boxed{12}"),
        ("S = 12", "\\boxed{\\text{Area} = 12}"),
        ("\\sin A = \\frac{3}{5}", "\\boxed{\\frac{3}{5}}"),
        ("|AB| = 1", "\\boxed{AB = 1}"),
        ("3", "\\boxed{a_{10} = 3}"),
        ("f^{-1}(3) = 2", "\\boxed{2}"),
        ("E(X) = 3", "\\boxed{3}"),
        ("m\\angle BAC = 40", "\\boxed{40^\\circ}"),
        ("a = 1, b = 2", "\\boxed{a, b = 1, 2}"),
        ("[ABC] = 10", "\\boxed{10}"),
    ],
    "list of solutions": [
        ("(7,11), (11,7)", "\\boxed{(11,7)or(7,11)}"),
        ("(7,11),(11,7)", "\\boxed{(11,7) \\text{ or } (7,11)}"),
        ("(1,2),(3,4)", "\\boxed{(3,4);(1,2)}"),
        ("(1,2),(3,4)", "\\boxed{(3,4) \\quad (1,2)}"),
        ("(1,2) \\text{ or } (3,4)", "\\boxed{(3,4), (1,2)}"),
        ("\\{(1,2),(3,4)\\}", "\\boxed{(3,4),(1,2)}"),
        ("(1,2),(3,4)", "\\boxed{(x,y) = (3,4), (1,2)}"),
        ("(1,2),(3,4)", "\\boxed{(x,y) \\in \\{(3,4),(1,2)\\}}"),
        ("1, 2", "\\boxed{2 \\text{ or } 1}"),
        ("1, 2", "\\boxed{x = 2 \\lor x = 1}"),
        ("x=1, x=2", "\\boxed{2, 1}"),
        ("x = 1, 2", "\\boxed{x=2 \\text{ or } x=1}"),
        ("2, -2", "\\boxed{x = \\pm 2}"),
        ("\\pm 3", "\\boxed{-3, 3}"),
        ("x=1,y=2", "\\boxed{\\begin{cases} y = 2 \\\\ x = 1 \\end{cases}}"),
        ("3, 5", "\\boxed{3} or \\boxed{5}"),
        ("3, 5", "$x = \\boxed{3}$, $x = \\boxed{5}$"),
        ("x=1 \\text{ or } x=2", "\\boxed{\\{2, 1\\}}"),
        ("3:2:1", "\\boxed{6:4:2}"),
        ("3:2:1", "\\boxed{A:B:C = 3:2:1}"),
        ("1, 2", "\\boxed{1;2}"),
        ("1, 2, 3", "\\boxed{1, 2, \\text{and } 3}"),
    ],
    "decimal comma": [
        ("3.5", "\\boxed{3,5}"),
        ("\\frac{7}{2}", "\\boxed{3,5}"),
        ("0.25", "\\boxed{0,25}"),
        ("3.5", "\\boxed{3{,}5}"),
        ("0.125", "\\boxed{0,125}"),
        ("1234.5", "\\boxed{1.234,5}"),
        ("23.5", "\\boxed{23,5 \\text{ cm}}"),
        ("-2.75", "\\boxed{-2,75}"),
        ("0.05", "Answer: 0,05"),
        ("3{,}5", "\\boxed{3.5}"),
        ("0,05", "\\boxed{0.05}"),
    ],
    "unit": [
        ("125", "\\boxed{125\\textnormal{ miles}}"),
        ("125\\textnormal{ miles}", "\\boxed{125}"),
        ("5", "\\boxed{5\\ \\mathsf{cm}}"),
        ("15", "\\boxed{15 \\text{ m/s}}"),
        ("15", "\\boxed{15 \\frac{\\text{m}}{\\text{s}}}"),
        ("9", "\\boxed{9\\,\\mathrm{cm}^2}"),
        ("9", "\\boxed{9 \\text{ square units}}"),
        ("5 cm", "\\boxed{5 centimeters}"),
        ("5 \\text{ km}", "\\boxed{5\\,\\mathrm{km}}"),
        ("12", "\\boxed{12{\\rm cm}}"),
        ("12", "\\boxed{12\\text{ apples}}"),
        ("2.5", "\\boxed{2.5 kg}"),
        ("60", "\\boxed{60 \\text{ km}/\\text{h}}"),
        ("30", "\\boxed{30 \\textrm{ degrees}}"),
    ],
    "approximately": [
        ("11", "\\boxed{x\\approx11}"),
        ("11", "\\boxed{\\approx 11}"),
        ("x \\approx 11", "\\boxed{11}"),
        ("11", "\\boxed{x = \\sqrt{121} \\approx 11.0}"),
        ("2.718", "\\boxed{y ≈ 2.718}"),
        ("\\sqrt{2}", "\\boxed{\\sqrt{2} \\approx 1.414}"),
        ("11", "\\boxed{\\text{approximately } 11}"),
        ("11", "The result is about 11."),
        ("7.2", "\\boxed{d \\simeq 7.2}"),
    ],
    "inequality": [
        ("x \\le 2", "\\boxed{x <= 2}"),
        ("x \\ge 2", "\\boxed{2 <= x}"),
        ("x \\le 2", "\\boxed{x \\leqslant 2}"),
        ("x \\ge 2", "\\boxed{x >= 2}"),
        ("-1 \\le x \\le 2", "\\boxed{-1 <= x <= 2}"),
        ("x < 3", "\\boxed{x \\lt 3}"),
        ("(-\\infty, 2]", "\\boxed{x <= 2}"),
        ("\\emptyset", "\\boxed{\\varnothing}"),
    ],
}

WRONG_ANSWERS = {
    "prose": [
        ("34", "Final Answer: The largest $n$ is 35."),
        ("34", "The answer is not 34 but 35."),
        ("34", "The answer is at least 34."),
        ("34", "There are more than 34 ways."),
        ("34", "The maximum is 35, attained when x = 34."),
        ("5", "The population is 5 million."),
        ("x \\le 2", "Thus $x >= 2$ is our answer."),
        ("4", "First x = 4. Adding up, 5 is the answer."),
        ("even", "So the sum is odd."),
        ("34", "The answer is 34 or 35."),
        ("34", "The answer lies between 34 and 40."),
        ("12", "It is 12 times as large."),
    ],
    "left side": [
        ("1", "\\boxed{|AB|=2}"),
        ("|AB| = 1", "\\boxed{2}"),
        ("4, 5", "\\boxed{AB=5,CD=4}"),
        ("AB=4,CD=5", "\\boxed{5, 4}"),
        ("AB = 4", "\\boxed{CD = 4}"),
        ("x + y = 2", "\\boxed{2}"),
        ("xy = 6", "\\boxed{6}"),
        ("2x = 4", "\\boxed{4}"),
        ("y = 0", "\\boxed{x = 0}"),
        ("a = 1, b = 2", "\\boxed{a, b = 2, 1}"),
        ("f(2) = 7", "\\boxed{f(3) = 7}"),
        ("x^2 = 4", "\\boxed{4}"),
    ],
    "list of solutions": [
        ("(7,11), (11,7)", "\\boxed{(7,11)or(7,12)}"),
        ("(7,11), (11,7)", "\\boxed{(7,11)}"),
        ("(1,2),(3,4)", "\\boxed{(2,1),(4,3)}"),
        ("1, 2", "\\boxed{2, 1}"),
        ("1, 2", "\\boxed{1 \\text{ or } 3}"),
        ("(1,2)", "\\boxed{1 \\text{ or } 2}"),
        ("(1,2)", "\\boxed{(2,1)}"),
        ("x=1,y=2", "\\boxed{x=2,y=1}"),
        ("x=1,y=2", "\\boxed{2, 1}"),
        ("1", "\\boxed{1 \\text{ or } 2}"),
        ("2", "\\boxed{x = \\pm 2}"),
        ("\\pm 3", "\\boxed{3}"),
        ("3:2:1", "\\boxed{3:1:2}"),
        ("3:2:1", "\\boxed{1.5}"),
        ("5", "\\boxed{3} or \\boxed{5}"),
        ("x=1, x=2", "\\boxed{1}"),
        ("\\{1, 2\\}", "\\boxed{x=2, y=1}"),
        ("x=1 \\text{ or } x=2", "\\boxed{y=2, x=1}"),
    ],
    "decimal comma": [
        ("3.5", "\\boxed{3,6}"),
        ("3", "\\boxed{3,5}"),
        ("3, 5", "\\boxed{3.5}"),
        ("0.25", "\\boxed{0,26}"),
        ("1.234", "\\boxed{1,234}"),
        ("125", "\\boxed{0,125}"),
        ("0.5", "\\boxed{5,0}"),
    ],
    "unit": [
        ("125", "\\boxed{126\\textnormal{ miles}}"),
        ("5 \\text{ cm}", "\\boxed{5 \\text{ m}}"),
        ("5 \\text{ km}", "\\boxed{5 miles}"),
        ("60 \\text{ minutes}", "\\boxed{60 \\text{ hours}}"),
        ("5", "\\boxed{5 \\text{ million}}"),
        ("5", "\\boxed{5m}"),
    ],
    "approximately": [
        ("11", "\\boxed{x\\approx12}"),
        ("11", "\\boxed{x\\approx11.2}"),
        ("11", "\\boxed{\\sqrt{120} \\approx 11}"),
        ("x = 11", "\\boxed{y\\approx11}"),
    ],
    "inequality": [
        ("x \\le 2", "\\boxed{x < 2}"),
        ("x \\le 2", "\\boxed{x >= 2}"),
        ("-1 \\le x \\le 2", "\\boxed{-1 < x < 2}"),
        ("x \\ge 2", "\\boxed{x <= 2}"),
    ],
}


def drawn(rng: random.Random) -> Iterator[tuple[str, str, str, str]]:
    """One of each kind: its name, a label, a response that is right, and one that is wrong."""
    a, b, c, d = rng.sample(range(2, 900), 4)
    thing = rng.choice(["the largest value", "the number of pairs", "the area of the triangle", "$f(3)$", "our total"])
    said = rng.choice(
        [
            f"Final Answer: {thing} is %s.",
            "Thus %s is our answer.",
            f"Hence {thing} is equal to %s.",
            f"So we see that {thing} must be $%s$, since it is odd.",
            f"First we get {d + 1000}. Therefore, {thing} equals $%s$.",
            f"It follows that {thing} is %s. This completes the proof.",
            "The answer to the question is $%s$.",
            f"We find that {thing} is %s when x = {d + 1000}.",
        ]
    )
    yield "prose", str(a), said % a, said % b
    yield "prose", str(a), f"The answer is not {b} but {a}.", f"The answer is not {a} but {b}."

    names = [
        "|AB|",
        "PQ",
        "\\angle XYZ",
        "S_{ABC}",
        "f(2)",
        "P(A)",
        "\\overline{CD}",
        "\\text{Area}",
        "a_{12}",
        "x",
        "N",
    ]
    first, second = rng.sample(names, 2)
    yield "left side", str(a), f"\\boxed{{{first} = {a}}}", f"\\boxed{{{first} = {b}}}"
    yield "left side", f"{first} = {a}", f"\\boxed{{{a}}}", f"\\boxed{{{b}}}"
    both = f"{first} = {a}, {second} = {b}"
    yield "left side", both, f"\\boxed{{{a}, {b}}}", f"\\boxed{{{b}, {a}}}"
    yield "left side", both, f"\\boxed{{{second} = {b}, {first} = {a}}}", f"\\boxed{{{first} = {b}, {second} = {a}}}"
    yield "left side", f"x + {c}y = {a}", f"\\boxed{{{a} = x + {c}y}}", f"\\boxed{{{a}}}"

    points = [f"({a},{b})", f"({c},{d})"]
    join = rng.choice(["or", " or ", "; ", " \\text{ or } ", ", ", "\\quad ", " \\lor "])
    wrong = join.join([points[1], f"({b},{a})"])
    yield "points", ", ".join(points), f"\\boxed{{{join.join(points[::-1])}}}", f"\\boxed{{{wrong}}}"
    join = rng.choice([" or ", " \\text{ or } ", " \\lor ", "\\ \\text{or}\\ "])
    yield "solutions", f"{a}, {b}", f"\\boxed{{{b}{join}{a}}}", f"\\boxed{{{b}{join}{c}}}"
    yield "solutions", f"x={a}, x={b}", f"\\boxed{{{b}, {a}}}", f"\\boxed{{{b}, {c}}}"
    yield "solutions", f"{a}, {b}", f"\\boxed{{x = {a}{join}x = {b}}}", f"\\boxed{{{a}}}"
    yield "solutions", f"{a}, -{a}", f"\\boxed{{x = \\pm {a}}}", f"\\boxed{{x = \\pm {b}}}"
    yield "solutions", f"{a}", f"\\boxed{{x = {a}}}", f"\\boxed{{{a}{join}{b}}}"

    tenth = rng.choice([1, 3, 7, 9])
    comma = rng.choice([",", "{,}"])
    if b > 99 or b < 10:  # three digits may be thousands
        yield "decimal comma", f"{a}.{b}{tenth}", f"\\boxed{{{a}{comma}{b}{tenth}}}", f"\\boxed{{{c}{comma}{b}{tenth}}}"
    yield "decimal comma", f"{a}.{tenth}", f"Answer: {a},{tenth}", f"Answer: {b},{tenth}"
    yield "decimal comma", f"{a}", f"\\boxed{{{a}}}", f"\\boxed{{{a},{tenth}}}"

    font = rng.choice(["textnormal", "text", "mathrm", "textrm", "mathsf", "mbox", "textsf"])
    unit, other = rng.sample(["cm", "km", "miles", "hours", "kg", "inches", "m/s", "seconds"], 2)
    yield "unit", str(a), f"\\boxed{{{a}\\{font}{{ {unit}}}}}", f"\\boxed{{{b}\\{font}{{ {unit}}}}}"
    yield "unit", f"{a} \\text{{ {unit}}}", f"\\boxed{{{a} {unit}}}", f"\\boxed{{{a} \\{font}{{ {other}}}}}"

    near = rng.choice(["\\approx", "\\simeq", "≈", "\\thickapprox"])
    yield "approximately", str(a), f"\\boxed{{x{near} {a}}}", f"\\boxed{{x{near} {a}.{tenth}}}"
    yield "approximately", f"\\sqrt{{{a * a + 1}}}", f"\\boxed{{\\sqrt{{{a * a + 1}}} {near} {a}}}", f"\\boxed{{{a}}}"

    sign, flipped = rng.choice([("<=", ">="), ("\\le", "\\ge"), ("\\leqslant", "\\geqslant"), ("≤", "≥")])
    yield "inequality", f"x \\le {a}", f"\\boxed{{x {sign} {a}}}", f"\\boxed{{x {flipped} {a}}}"
    yield "inequality", f"x \\le {a}", f"Thus ${a} {flipped} x$ is our answer.", f"Thus $x {sign} {b}$ is our answer."
    yield "ratio", f"{a}:{b}:{c}", f"\\boxed{{{2 * a}:{2 * b}:{2 * c}}}", f"\\boxed{{{a}:{c}:{b}}}"
