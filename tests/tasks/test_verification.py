r"""These tests compare answers as models write them with right ones: equal ones are accepted, nearly equal ones are
not."""

import pytest

from grpo.tasks.verification import UnparsableAnswer, mathematics

SAME = [
    (
        "42",
        ["42.0", "42.", "$42$", r"\text{42}", r"\frac{84}{2}", r"42 \text{ apples}", "42 apples", r"x = 42", r"\(42\)"],
    ),
    ("13535", ["13,535", r"13\,535", r"13{,}535", r"13,\!535"]),
    (r"\frac{1}{2}", ["1/2", "0.5", ".50", r"\dfrac12", r"\tfrac{2}{4}", r"\displaystyle \frac{1}{2}."]),
    (r"\frac{3}{2}", ["1 1/2", "1.5"]),
    (r"12.5\%", ["12.5", "12.5%", r"12.5\,\%", r"12.5 \text{ percent}", "25/2"]),
    (r"\text{(B)}", ["B", "(B)", "b", r"\mathbf{B}", r"\text{B}."]),
    ("the derivative", ["derivative", "The derivative."]),
    ("Yes", ["yes", r"\text{Yes}", "Yes."]),
    ("true", ["true", "True", r"\text{True}", "TRUE."]),
    ("false", ["false", "False"]),
    (r"2\sqrt{5}", [r"2 \cdot \sqrt5", r"\sqrt{20}", r"2\sqrt{5}.", r"{2\sqrt{5}}"]),
    (r"\{1, 2, 3\}", ["3, 2, 1", r"\left\{ 2, 1, 3 \right\}"]),
    (r"\{(0, 1), (2, 3)\}", ["(2, 3), (0, 1)"]),
    ("(3, -4)", [r"\left(3,-4\right)", "(3.0, -4)"]),
    ("(3, 4]", [r"x \in (3,4]", r"3 < x \le 4"]),
    ("204_5", [r"204_{5}", r"(204)_5", r"204_{\text{5}}"]),
    ("x^2+1", ["1 + x^2", r"x^{2}+1"]),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", [r"\begin{bmatrix}1\\2\end{bmatrix}"]),
    ("C", ["(C) 42", "C. A red car", "option C", r"\text{C. red}", r"\textbf{(C) }42", "C:", "C) red and blue"]),
    ("18", [r"18~\text{cm}", r"\[18\]"]),
    (r"90^\circ", ["90", "90°", r"90 \text{ degrees}"]),
    (r"\frac{3+4i}{5}", [r"\frac{3}{5} + \frac{4}{5}i", "0.6 + 0.8i"]),
    ("2i", [r"(1+i)^2", r"\sqrt{4}i"]),
    ("3+5t", ["5t+3", "3 + 5 t", "x = 3+5t"]),
    ("7", ["3 + 4 = 7 m", "7 m"]),
    (r"\emptyset", [r"\varnothing"]),
    ("June 20", [r"\text{June 20}", r"\text{June }20."]),
]
DIFFERENT = [
    # math_verify multiplies letters.
    ("tea", ["eat", "ate"]),
    ("silent", ["listen", r"\text{netsil}"]),
    ("42", ["43", "-42", "420", "42x", r"42\pi", "42, 43", r"x \neq 42", "x > 42", r"42\sqrt{2}."]),
    (r"\frac{1}{2}", ["2", r"\frac{2}{1}", "0.51", "1", r"-\frac12"]),
    (".0000672", [".0000673", "0.000067"]),
    (r"\frac{1}{14880}", [r"\frac{1}{14881}"]),
    (r"25\%", [r"25\%x", "26", r"x \neq 25\%"]),
    ("B", ["A", "(C)", "B or C", "not B"]),
    ("C", ["(D) 42", "(C) or (D)", "C. or D", "(C) or A", "C, D", "c. 10 D"]),
    ("Yes", ["No", "Yes or No"]),
    ("true", ["false", "1", "not true", "7"]),
    ("A", ["a cat", "B"]),
    (r"\frac{3}{2}", ["1 1/3", "11/2"]),
    ("2", [r"2\sqrt{5}.", r"2\sqrt5"]),
    (r"\{1, 2, 3\}", ["1, 2", r"\{1,2,4\}", r"\{1,2,3,4\}"]),
    ("(3, -4)", ["(-4, 3)", "(3, 4)", "(3, -4, 0)"]),
    ("(3, 4]", ["[3, 4]", "(3, 4)", "(3, 5]"]),
    (r"\frac{3+4i}{5}", [r"\frac{3-4i}{5}", r"\frac{3}{5}", r"\frac{7}{5}"]),
    ("3+5t", ["8", "3+5", "3+5s"]),
    ("June 20", ["June 21", r"\text{July 20}", "20"]),
    # math_verify takes these for equal.
    ("(0, 1)", [r"\{0, 1\}", r"\left\{0, 1\right\}"]),
    (r"\{0, 1\}", ["(0, 1)", r"\left[0, 1\right]"]),
    (r"(5, \infty)", [r"(5, \infty]", r"[5, \infty)"]),
    ("204_5", ["204_6", "204", "205_5"]),
    ("x^2+1", ["x^2-1", "x^3+1"]),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", [r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"]),
]


@pytest.fixture(scope="module")
def same():
    return mathematics()


@pytest.mark.parametrize(("answer", "forms"), SAME, ids=[answer for answer, _ in SAME])
def test_the_same_answer_in_other_words_is_right(same, answer, forms):
    assert [form for form in forms if same(form, answer) != 1.0] == []


@pytest.mark.parametrize(("answer", "forms"), DIFFERENT, ids=[answer for answer, _ in DIFFERENT])
def test_a_near_miss_is_wrong(same, answer, forms):
    assert [form for form in forms if same(form, answer) != 0.0] == []


def test_an_answer_of_a_megabyte_is_wrong_at_once(same):
    assert same("9" * 10**6, "5") == 0.0
    assert same(r"\frac{1}{" * 20_000 + "2" + "}" * 20_000, r"\frac{1}{2}") == 0.0


def test_an_answer_that_says_nothing_is_unparsable(same):
    with pytest.raises(UnparsableAnswer):
        same("5", "")


def test_in_prose_the_answer_is_searched():
    same = mathematics(prose=True)
    assert same("so the sum is $7$", "7") == same("it is $4i+3$", "3+4i") == same("it is $3+4i$.", "3+4i") == 1.0
    assert same("The answer is **C**.", "C") == same("Yes.", "yes") == same(r"on \text{Tuesday}", "Tuesday") == 1.0
    assert same("It is c", "C") == same("It is (D).", "C") == same("C is wrong", "C") == same("no", "yes") == 0.0
