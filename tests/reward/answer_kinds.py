r"""How models write right answers, and wrong ones that look alike: (label, response) pairs for the default mode."""

from __future__ import annotations

import random
from collections.abc import Iterator

RIGHT = {
    "prose": [
        ("34", "Final Answer: The largest $n$ is 34."), ("34", "Final Answer: the number of such triples is $34$."),
        (r"x \le 2", "Thus $x <= 2$ is our answer."), ("12", "Hence there are 12 ways to do it."),
        ("12", "So the area of the triangle equals 12 square units."),
        ("7", "Therefore, the value of $k$ must be $7$."), ("7", "I get 7 as the final answer."),
        ("34", "The maximum is 34, attained when x = 2."), ("34", "The maximum value of f when x is in [0, 1] is 34."),
        ("5", "We conclude that $x = 5$. This completes the proof."),
        ("5", "It follows that x = 5.\n\nI hope this helps!"),
        (r"\frac{3}{8}", r"So the probability is $\frac{3}{8}$ for each player."), ("3", "The answer is not 4 but 3."),
        ("odd", "Adding them shows that the sum is odd."), ("12", "Answer:\n$$\n12\n$$"),
        ("34", "First x = 3 and y = 4. Adding up, 34 is the answer."), ("18", "#### 18"),
        ("5", "The answer should be $5$ dollars."), ("x + y = 2", "The line is given by $x + y = 2$."),
        ("34", "**Final Answer:** The sum equals **34**."), ("5 million", "The population is 5 million."),
        ("6", "So the number is 3!"), (r"\frac{37}{72}", r"We get \tfrac{1}{2} +\! \frac1{72}."),
        ("24", "Hence the triangle's area is exactly half of 48, namely 24."),
        ("5", "Suppose the answer is 4. Then we get a contradiction, so it is 5."), ("no", "No, because 7 is prime."),
        ("A", "Choose (A)."), ("7", "Thus our answer is 7, which is option C."), ("C", "I'd go with **C**."),
        (r"20\%", "Thus 20% of the students passed."), ("1,2,3", "The solutions are:\n- 1\n- 2\n- 3"),
        ("3", "Thus 3 is the smallest possible value."), ("36", "The price rises by 20% to 36."),
        ("3", "Therefore, 3 is the smallest such integer."), ("3", "It follows that only 3 values of $k$ work."),
        ("-5", "The answer is minus 5."), ("14", "Putting everything together, Lisa ends up with 14 marbles."),
        ("7", "The answer is 7 (not 8)."), ("3/2", r"The final result is therefore $x = \frac{3}{2}$, as required."),
        ("(2,1),(1,2)", "Therefore all solutions are $(1,2)$ and $(2,1)$."), ("2, 3", "The roots are\n\n3 and 2"),
    ],
    "left side": [
        ("1", r"\boxed{|AB|=1}"), ("|AB| = 1", r"\boxed{1}"), ("4, 5", r"\boxed{AB=4,CD=5}"),
        ("AB=4,CD=5", r"\boxed{4, 5}"), ("AB=4,CD=5", r"\boxed{CD=5, AB=4}"), (r"\angle ABC = 30^\circ", r"\boxed{30}"),
        (r"P(A) = \frac12", r"\boxed{0.5}"), ("S_{ABC} = 6", r"\boxed{6}"), ("6", r"\boxed{S_{\triangle ABC} = 6}"),
        (r"\overline{AB} = 7", r"\boxed{7}"), ("f(2) = 7", r"\boxed{7}"), (r"\text{Area} = 12", r"\boxed{12}"),
        ("S = 12", r"\boxed{\text{Area} = 12}"), (r"\sin A = \frac{3}{5}", r"\boxed{\frac{3}{5}}"),
        ("|AB| = 1", r"\boxed{AB = 1}"), ("3", r"\boxed{a_{10} = 3}"), ("f^{-1}(3) = 2", r"\boxed{2}"),
        ("E(X) = 3", r"\boxed{3}"), (r"m\angle BAC = 40", r"\boxed{40^\circ}"),
        ("a = 1, b = 2", r"\boxed{a, b = 1, 2}"), ("[ABC] = 10", r"\boxed{10}"), ("5", r"\boxed{|z|=5}"),
        ("5", r"\boxed{2+3=5}"), ("5", r"\boxed{5 \pmod{7}}"), ("5", r"\boxed{5 = x}"),
        (r"(\pi,2)", r"\boxed{(\theta, r) = (\pi, 2)}"), ("5", r"\boxed{\text{Minimum value: } 5}"),
        ("5", r"\boxed{\text{The answer is } 5}"), ("13", r"\boxed{|\overrightarrow{PQ}| = 13}"),
        (r"36\pi", r"\boxed{V = 36\pi \text{ cm}^3}"), (r"\frac{1}{2}x+3", r"\boxed{y=\frac12x+3}"),
        (r"\frac{1}{x-1}", r"\boxed{g(x) = \frac{1}{x-1}}"), ("7", r"\boxed{f'(2) = 7}"),
        ("55", r"\boxed{a_{10} = 55}"), ("41", r"\boxed{m+n = 41}"), ("9", r"\boxed{\max = 9}"),
        ("2/3", r"\boxed{\frac{AB}{CD} = \frac{2}{3}}"), ("5", r"\boxed{r = 5 \text{ cm}}"), ("x=5", r"\boxed{5 = x}"),
        ("55", r"\boxed{\sum_{k=1}^{10} k = 55}"), ("2", r"\boxed{\lim_{n\to\infty} a_n = 2}"),
        ("60", r"\boxed{\triangle ABC = 60}"),
    ],
    "list of solutions": [
        ("(7,11), (11,7)", r"\boxed{(11,7)or(7,11)}"), ("(7,11),(11,7)", r"\boxed{(11,7) \text{ or } (7,11)}"),
        ("(1,2),(3,4)", r"\boxed{(3,4);(1,2)}"), ("(1,2),(3,4)", r"\boxed{(3,4) \quad (1,2)}"),
        (r"(1,2) \text{ or } (3,4)", r"\boxed{(3,4), (1,2)}"), (r"\{(1,2),(3,4)\}", r"\boxed{(3,4),(1,2)}"),
        ("(1,2),(3,4)", r"\boxed{(x,y) = (3,4), (1,2)}"), ("(1,2),(3,4)", r"\boxed{(x,y) \in \{(3,4),(1,2)\}}"),
        ("1, 2", r"\boxed{2 \text{ or } 1}"), ("1, 2", r"\boxed{x = 2 \lor x = 1}"), ("x=1, x=2", r"\boxed{2, 1}"),
        ("x = 1, 2", r"\boxed{x=2 \text{ or } x=1}"), ("2, -2", r"\boxed{x = \pm 2}"), (r"\pm 3", r"\boxed{-3, 3}"),
        ("x=1,y=2", r"\boxed{\begin{cases} y = 2 \\ x = 1 \end{cases}}"), ("3, 5", r"\boxed{3} or \boxed{5}"),
        ("3, 5", r"$x = \boxed{3}$, $x = \boxed{5}$"), (r"x=1 \text{ or } x=2", r"\boxed{\{2, 1\}}"),
        ("3:2:1", r"\boxed{6:4:2}"), ("3:2:1", r"\boxed{A:B:C = 3:2:1}"), ("1, 2", r"\boxed{1;2}"),
        ("1, 2, 3", r"\boxed{1, 2, \text{and } 3}"),
    ],
    "decimal comma": [("3.5", r"\boxed{3,5}"), (r"\frac{7}{2}", r"\boxed{3,5}"), ("23.5", r"\boxed{23,5 \text{ cm}}")],
    "unit": [
        ("125", r"\boxed{125\textnormal{ miles}}"), (r"125\textnormal{ miles}", r"\boxed{125}"),
        ("9", r"\boxed{9 \text{ square units}}"), ("5 cm", r"\boxed{5 centimeters}"),
        (r"5 \text{ km}", r"\boxed{5\,\mathrm{km}}"), ("12", r"\boxed{12{\rm cm}}"),
        ("12", r"\boxed{12\text{ apples}}"), ("2.5", r"\boxed{2.5 kg}"), ("30", r"\boxed{30 \textrm{ degrees}}"),
    ],
    "approximately": [
        (r"x \approx 11", r"\boxed{11}"), ("2.718", r"\boxed{y ≈ 2.718}"),
        (r"\sqrt{2}", r"\boxed{\sqrt{2} \approx 1.414}"), ("11", r"\boxed{\text{approximately } 11}"),
        ("11", "The result is about 11."), ("7.2", r"\boxed{d \simeq 7.2}"),
    ],
    "inequality": [
        (r"x \le 2", r"\boxed{x <= 2}"), ("x < 3", r"\boxed{x \lt 3}"), (r"\emptyset", r"\boxed{\varnothing}"),
    ],
    "approximations": [
        ("3.46", r"\boxed{3.46 \text{ (to 2 decimal places)}}"),
        ("7.39", r"\boxed{7.39 \text{ (rounded to two decimals)}}"), ("3.46", "So the distance is about 3.46 km."),
        ("22/7", r"\boxed{\frac{22}{7} \approx 3.14}"), ("12.5", r"\boxed{≈ 12.5}"),
        ("0.67", "The value rounded to two decimal places is 0.67."), ("3.46", "Answer: approximately 3.46"),
    ],
    "assignments": [
        ("(3,-1)", r"\boxed{(x, y) = (3, -1)}"), ("4, 5", r"\boxed{AB = 4, BC = 5}"),
        ("x=3,y=-1", r"\boxed{y = -1, x = 3}"),
    ],
    "choices": [
        ("D", "So the correct answer is **D) 28**."), ("C", "The correct answer is (C)."),
        ("B", "The answer is option B because 3 > 2."), ("B", "Answer: option B, since 3 is odd"),
    ],
    "corrections": [
        ("10", "I first thought that the answer was 9, but it is 10."),
        ("-4", "So x = 4. Hmm, wait: check the sign. Actually x = -4."),
        ("13", "The answer is 12. Wait, no, I forgot the case n=0. The answer is 13."),
        ("25", "Answer: 20. Actually, let me recheck. 5*5=25, so the answer is 25."),
    ],
    "expressions": [
        (r"2\cos\frac{\pi}{9}", r"\boxed{2\cos 20^\circ}"), (r"1+\sqrt{3}i", r"\boxed{2e^{i\pi/3}}"),
        (r"2\sqrt{3}", r"\boxed{2√3}"), (r"\frac43", r"\boxed{1.\overline{3}}"), ("n(n+1)", r"\boxed{n² + n}"),
        (r"-\frac12", r"\boxed{\cos 120°}"), (r"2+\sqrt3", r"\boxed{\tan 75^\circ}"), (r"3\sqrt{5}", r"\boxed{3√5}"),
        ("1.5", r"\boxed{\sin 30^\circ + 1}"), ("120", r"\boxed{{10 \choose 3}}"), (r"\log 2", r"\boxed{\log_{10} 2}"),
    ],
    "intervals": [
        (r"\text{all real numbers}", r"\boxed{\mathbb{R}}"), (r"(2,3)\cup(3,\infty)", r"\boxed{x>2, x\neq 3}"),
        (r"x \ne 2", r"\boxed{\{ x \in \mathbb{R} : x \ne 2\}}"),
        (r"x \le -1 \text{ or } x \ge 2", r"\boxed{x \in (-\infty,-1] \cup [2,\infty)}"),
        (r"\infty", r"\boxed{\text{infinity}}"), ("x > 3", r"\boxed{\{x \mid x > 3\}}"),
    ],
    "pairs": [
        ("1331 and 1728", r"\boxed{1728 and 1331}"), (r"1331 \text{ and } 1728", r"\boxed{1728 \text{ and } 1331}"),
        (r"\frac12 and \frac13", r"\boxed{\frac13 and \frac12}"),
    ],
    "full width": [("42", r"\boxed{４２}"), ("42", "The answer is ４２。"), ("42", r"\boxed{42。}")],
    "markdown": [
        ("B", "The answer is **(B) 12**."), ("42", "## Answer\n\n$$\n42\n$$"),
        ("7/9", r"**The final answer is:** \[ \boxed{\dfrac{7}{9}} \]"),
    ],
    "numbers": [
        ("1/3", r"\boxed{0.\overline{3}}"), ("3/11", r"\boxed{0.\overline{27}}"), ("1000000", r"\boxed{1.000.000}"),
        ("1/2", r"\boxed{½}"), ("0.75", r"\boxed{¾}"),
    ],
    "residues and bases": [
        ("2", r"\boxed{17 \bmod 5}"), ("1011_2", r"\boxed{1011_{(2)}}"), (r"3 \pmod 8", r"\boxed{x \equiv 3 \pmod{8}}"),
        ("4", r"\boxed{4 \ (\text{mod } 9)}"), ("7", r"\boxed{7\ (\mathrm{mod}\ 11)}"),
        (r"x \equiv 5, 2 \pmod{7}", r"\boxed{x\equiv 2,5\pmod 7}"), ("2A_{16}", r"\boxed{2A_{16}}"),
        ("1011_2", r"\boxed{1011}"),
    ],
    "several boxes": [
        ("1, 5", r"The roots are $\boxed{5}$ and $\boxed{1}$."),
        ("-3, 2", r"The solutions are \boxed{2} and \boxed{-3}."),
        ("-4, 4", r"The two possible values are $\boxed{4}$ or $\boxed{-4}$."),
        ("11", r"I get \boxed{12}. Let me double check... 3 + 8 = 11, so actually \boxed{11}."),
    ],
    "signs": [
        (r"\frac{\pi^2}{6}", r"\boxed{π²/6}"), ("18", r"\boxed{2·3²}"), (r"\sqrt{10}", "The answer is √(10)."),
        ("-0.25", r"\boxed{−¼}"), (r"\pm 3", r"\boxed{±3}"), ("-5", r"\boxed{−5}"),
        (r"\frac{\pi}{6}", r"\boxed{θ = π/6}"), (r"x \ge 3", r"\boxed{x ≥ 3}"),
    ],
    "solutions": [
        ("2, 3", "The solutions are x = 2 and x = 3."), ("2,3", "The solutions are:\n- $x = 2$\n- $x = 3$"),
        ("x=1,y=2", r"\boxed{\begin{aligned} x &= 1 \\ y &= 2 \end{aligned}}"),
    ],
    "times and ratios": [
        ("4:30", "The two trains meet at 4:30 PM."), ("10:30", r"\boxed{\text{10:30 AM}}"),
        (r"3:30\text{ p.m.}", r"\boxed{\text{3:30 PM}}"),
    ],
    "tuples and matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\left(\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right)}"),
        (r"(2,\pi,\pi/4)", r"\boxed{(\rho,\theta,\phi) = (2, \pi, \frac{\pi}{4})}"),
        ("(1,-2,3)", r"\boxed{\langle 1, -2, 3 \rangle}"),
        (r"\begin{pmatrix} \frac12 \\ -3 \end{pmatrix}", r"\boxed{\begin{pmatrix} 1/2 \\ -3 \end{pmatrix}}"),
        (r"\langle 2,0,-5 \rangle", r"\boxed{\langle 2, 0, -5\rangle}"),
        (r"\left(\frac12, 3\right)", r"\boxed{(0.5, 3)}"), ("(3, -0.5)", r"\boxed{P = (3, -\tfrac12)}"),
    ],
    "units": [
        ("5", r"\boxed{€5}"), ("5", r"\boxed{£5}"), ("30", r"\boxed{£30}"), ("12", r"\boxed{\mathrm{12\ cm}}"),
        ("64", r"\boxed{\text{64 cubic inches}}"), (r"3.5 \text{ dollars}", r"\boxed{\$3.50}"),
        (r"45\%", r"\boxed{45 \text{ percent}}"), ("80", r"\boxed{80 \text{ percent}}"),
        ("1500000", r"\boxed{1.5\text{ million}}"),
    ],
    "words": [
        ("7", r"\boxed{\text{seven}}"), ("no", "No, such a polynomial does not exist."),
        ("yes", "Yes, it is possible."), (r"\text{no solution}", r"\boxed{\emptyset}"),
        (r"\text{isosceles}", "The triangle is isosceles."), ("yes", "Yes. Such a polynomial exists."),
        ("no", "No. It does not exist."),
    ],
}  # fmt: skip

WRONG = {
    "prose": [
        ("34", "Final Answer: The largest $n$ is 35."), ("34", "The answer is not 34 but 35."),
        ("34", "The answer is at least 34."), ("34", "There are more than 34 ways."),
        ("34", "The maximum is 35, attained when x = 34."), ("5", "The population is 5 million."),
        (r"x \le 2", "Thus $x >= 2$ is our answer."), ("4", "First x = 4. Adding up, 5 is the answer."),
        ("even", "So the sum is odd."), ("34", "The answer lies between 34 and 40."),
        ("12", "It is 12 times as large."), ("10", "I could not determine whether 10 is the answer."),
        ("4", "Suppose the answer is 4. Then we get a contradiction, so it is 5."), ("5", "x never equals 5."),
        (r"\frac12", r"It is minus $\frac12$."), ("7", "It can't be 7, so it must be 8."),
        ("8", "The answer is negative 8."), ("(3, 2)", "The roots are 3 and 2."),
        ("5/36", r"Thus the probability is $\frac{5}{36}$, so $m+n = 5+36 = 41$."),
        ("12", "The value isn't equal to 12."), ("5", "The answer is minus 5."), ("5", "x equals negative 5"),
        ("5", "The value can't be 5."), ("5", "Therefore the answer cannot be 5."),
        ("3", "The answer is 3 more than 5."), ("2", "She needs 2 hours and 15 minutes."), ("10", "Half of 10 is 5."),
        ("36", "There are more than 36 such integers."), ("24", "Hence there are 12 solutions in total, not 24."),
        ("8", "The two numbers are 6 and 8, whose product is 48."),
    ],
    "left side": [
        ("1", r"\boxed{|AB|=2}"), ("|AB| = 1", r"\boxed{2}"), ("4, 5", r"\boxed{AB=5,CD=4}"),
        ("AB=4,CD=5", r"\boxed{5, 4}"), ("AB = 4", r"\boxed{CD = 4}"), ("x + y = 2", r"\boxed{2}"),
        ("xy = 6", r"\boxed{6}"), ("2x = 4", r"\boxed{4}"), ("y = 0", r"\boxed{x = 0}"),
        ("a = 1, b = 2", r"\boxed{a, b = 2, 1}"), ("f(2) = 7", r"\boxed{f(3) = 7}"), ("x^2 = 4", r"\boxed{4}"),
        ("5", r"\boxed{|x|=5}"), ("5", r"\boxed{1=2=5}"), ("5", r"\boxed{6=5}"), ("5", r"\boxed{5 \pmod{1}}"),
        ("18", r"\boxed{x \equiv 18 \pmod{11}}"), ("12", r"\boxed{4x = 12}"), ("4", r"\boxed{x^2 = 4}"),
        ("49", r"\boxed{y^2 = 49}"), ("5", r"\boxed{3x+2=5}"), ("25", r"\boxed{5x = 25}"), ("7", r"\boxed{x + 3 = 7}"),
        ("10", r"\boxed{2x = 10}"), ("-1", r"\boxed{|AB| = 1}"), ("x = 3, y = 4", r"\boxed{x = y = 3}"),
        ("5", r"\boxed{x \geq 5}"), ("3/2", r"\boxed{\frac{AB}{CD} = \frac{2}{3}}"), ("5", r"\boxed{5 = x + 1}"),
        ("2n+1", r"\boxed{a_n=2n-1}"), ("20", r"\boxed{T_{20} = 210}"), (r"\{3, 4\}", r"\boxed{x = 3, y = 4}"),
        ("7", r"\boxed{n \ne 7}"), (r"(2, \pi)", r"\boxed{(\theta, r) = (\pi, 2)}"), ("y=3x-2", r"\boxed{3x + y = 2}"),
    ],
    "list of solutions": [
        ("(7,11), (11,7)", r"\boxed{(7,11)or(7,12)}"), ("(7,11), (11,7)", r"\boxed{(7,11)}"),
        ("(1,2),(3,4)", r"\boxed{(2,1),(4,3)}"), ("1, 2", r"\boxed{2, 1}"), ("1, 2", r"\boxed{1 \text{ or } 3}"),
        ("(1,2)", r"\boxed{1 \text{ or } 2}"), ("(1,2)", r"\boxed{(2,1)}"), ("x=1,y=2", r"\boxed{x=2,y=1}"),
        ("x=1,y=2", r"\boxed{2, 1}"), ("1", r"\boxed{1 \text{ or } 2}"), ("2", r"\boxed{x = \pm 2}"),
        (r"\pm 3", r"\boxed{3}"), ("3:2:1", r"\boxed{3:1:2}"), ("3:2:1", r"\boxed{1.5}"),
        ("5", r"\boxed{3} or \boxed{5}"), ("x=1, x=2", r"\boxed{1}"), (r"\{1, 2\}", r"\boxed{x=2, y=1}"),
        (r"x=1 \text{ or } x=2", r"\boxed{y=2, x=1}"),
    ],
    "decimal comma": [("3.5", r"\boxed{3,6}"), ("3", r"\boxed{3,5}"), ("3, 5", r"\boxed{3.5}")],
    "unit": [
        ("125", r"\boxed{126\textnormal{ miles}}"), (r"5 \text{ km}", r"\boxed{5 miles}"),
        (r"60 \text{ minutes}", r"\boxed{60 \text{ hours}}"), ("5", r"\boxed{5 \text{ million}}"),
    ],
    "approximately": [
        ("11", r"\boxed{x\approx12}"), ("11", r"\boxed{x\approx11.2}"), ("11", r"\boxed{\sqrt{120} \approx 11}"),
    ],
    "inequality": [
        (r"x \le 2", r"\boxed{x < 2}"), (r"x \le 2", r"\boxed{x >= 2}"), (r"-1 \le x \le 2", r"\boxed{-1 < x < 2}"),
    ],
    "approximations": [
        ("11", r"\boxed{x \approx 11.1}"), (r"\pi", r"\boxed{3.14}"), (r"x \approx 12", r"\boxed{x \approx 11}"),
    ],
    "assignments": [
        ("x=3, y=-1", r"\boxed{x = -1, y = 3}"), ("x=3, y=-1", r"\boxed{x = 3}"), ("(3, -1)", r"\boxed{x = -1, y = 3}"),
    ],
    "choices": [("A", r"\boxed{A(B)}"), ("(B+1)", r"\boxed{\text{B}}"), ("3", "The answer is option B because 3 > 2.")],
    "corrections": [
        ("9", "I first thought that the answer was 9, but it is 10."),
        ("4", "So x = 4. Hmm, wait: check the sign. Actually x = -4."), ("15", "Not 15, but rather 16."),
        ("12", "The answer is 12. Wait, no, I forgot the case n=0. The answer is 13."),
    ],
    "expressions": [
        ("x^2+2x-3", r"\boxed{x^2-2x-3}"), (r"0.1\overline{2}", r"\boxed{0.\overline{12}}"),
        ("0.333", r"\boxed{0.\bar{3}}"), ("0.9", r"\boxed{0.\overline{9}}"), (r"\sqrt{3}", r"\boxed{\tan 30^\circ}"),
        ("52", r"\boxed{5²}"), ("2x", r"\boxed{½x}"), ("2", r"\boxed{±2}"),
    ],
    "intervals": [
        (r"(0,\infty)", r"\boxed{\text{all reals}}"),
        (r"(-\infty,-2)\cup(2,\infty)", r"\boxed{t < -2 \text{ or } t \ge 2}"),
        (r"\text{infinite many solutions}", r"\boxed{\infty}"), (r"\mathbb{R}", r"\boxed{\emptyset}"),
        (r"a \le 0", r"\boxed{a<0}"), (r"\infty", r"\boxed{-\text{infinity}}"), (r"\mathbb{R}", r"\boxed{(0,\infty)}"),
    ],
    "thoughts": [
        ("42", r"<think>The answer is \boxed{42}"), ("42", r"<think>The answer is \boxed{42}</think>"),
        ("42", r"<think>x</think> It is \boxed{41}. <think>Or is the answer \boxed{42}?"),
    ],
    "pairs": [
        ("1331 and 1728", r"\boxed{1728 and 1330}"), ("1331, 1728", r"\boxed{1728 and 1331}"),
        ("0 < x and x < 3", r"\boxed{x < 0 and 3 < x}"),
    ],
    "markdown": [
        ("24", "### Final Answer\n\n**42**"), (r"7\sqrt2", r"**Result:** *$2\sqrt{7}$*"),
        ("4", "**Answer:** 16\n\n*Note: 4 is not allowed.*"),
    ],
    "numbers": [(r"-\frac12", r"\boxed{-1 \frac{1}{2}}"), ("-2.5", r"\boxed{-3\frac{1}{2}}"), ("0", r"\boxed{1/0}")],
    "residues and bases": [
        (r"x \equiv 3 \pmod{8}", r"\boxed{x \equiv 5 \pmod{8}}"), ("1011_2", r"\boxed{(1011)_3}"),
        ("2102_3", r"\boxed{2012_3}"), (r"x \equiv 3 \pmod 8", r"\boxed{3}"), ("10_3", r"\boxed{10₂}"),
    ],
    "several boxes": [
        ("4", r"\boxed{4} is the answer for part (a); for part (b) it is \boxed{9}"),
        ("12", r"I get \boxed{12}. Let me double check... 3 + 8 = 11, so actually \boxed{11}."),
        ("5", r"First we get \boxed{5}. But wait, that is wrong. Correct: \boxed{6}"),
        ("5", r"The roots are $\boxed{5}$ and $\boxed{1}$."),
        ("4", r"The two possible values are $\boxed{4}$ or $\boxed{-4}$."),
    ],
    "signs": [
        (r"x \ge 0", r"\boxed{x ∈ (0, ∞)}"), ("235", r"\boxed{2 × 3 × 5}"), ("5", r"\boxed{−5}"),
        (r"\frac{3\pi}{4}", r"\boxed{4π/3}"), (r"\sqrt{2}", r"\boxed{√2/2}"), ("3", r"\boxed{3π}"),
        ("3", r"\boxed{±3}"), ("x > 3", r"\boxed{x ≥ 3}"), ("0.25", r"\boxed{−¼}"), ("36", r"\boxed{2·3²}"),
    ],
    "solutions": [
        ("3", "The solutions are x = 2 and x = 3."), (r"-\frac14, 4", r"\boxed{r = 4 \text{ or } r = \frac{1}{4}}"),
        ("11, 2, 5", r"\boxed{p \in \{2, 5\}}"),
    ],
    "times and ratios": [
        (r"4:30 \text{ AM}", "The two trains meet at 4:30 PM."), (r"3:00\text{ p.m.}", r"\boxed{3:00 \text{ a.m.}}"),
        (r"7:15 \text{ AM}", r"\boxed{7:15 \text{ p.m.}}"), ("12:00", r"\boxed{11:59}"),
        (r"1:\sqrt{2}", r"\boxed{\sqrt{2}:1}"), ("12:00", r"\boxed{34}"), ("1/0", r"\boxed{34}"),
        ("3:00", r"\boxed{4:00}"),
    ],
    "tuples and matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\left(\begin{array}{cc} 1 & 2 \\ 4 & 3 \end{array}\right)}"),
        (r"\langle 2,0,-5 \rangle", r"\boxed{\langle 2, -5, 0\rangle}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}}"),
        ("(3, -0.5)", r"\boxed{P = (-\tfrac12, 3)}"), ("(1,-2,3)", r"\boxed{\langle 1, 2, 3 \rangle}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}}"),
    ],
    "units": [
        ("12 cm^2", r"\boxed{12 cm^3}"), (r"5 \text{ cents}", r"\boxed{\$5}"),
        (r"60^\circ", r"\boxed{60 \text{ radians}}"), ("3", r"\boxed{3 \text{ thousand}}"),
        (r"6 \text{ feet } 2 \text{ inches}", r"\boxed{2 \text{ feet } 6 \text{ inches}}"),
        (r"50 \text{ cents}", r"\boxed{\$50}"), (r"3 \text{ dozen}", r"\boxed{3 \text{ times}}"),
        ("4", r"\boxed{4 \text{ dozen}}"), (r"5\%", r"\boxed{50\%}"), (r"60 \text{ m/s}", r"\boxed{60 \text{ km/h}}"),
        ("£5", r"\boxed{€5}"),
    ],
    "words": [
        (r"5\ \text{square cm}", r"\boxed{5\ \text{cm}}"), (r"\emptyset", r"\boxed{\text{zero}}"),
        ("1", r"\boxed{\text{no real solutions}}"), (r"\text{even}", r"\boxed{\text{odd}}"),
        ("none", r"\boxed{\text{no}}"), (r"\text{no solution}", r"\boxed{\text{no real solutions}}"),
        (r"\text{both}", r"\boxed{\text{neither}}"), (r"\text{five}", r"\boxed{-5}"), ("false", r"\boxed{\text{True}}"),
    ],
}  # fmt: skip


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

    names = ["|AB|", "PQ", "\\angle XYZ", "S_{ABC}", "f(2)", "P(A)", "\\overline{CD}", "\\text{Area}", "a_{12}", "x"]
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
