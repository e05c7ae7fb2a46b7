import csv
import re

import pytest
import torch
from command_line import sat_slime_command
from dump_files import format_2, rollout
from typer.testing import CliRunner

from sat_slime.cli import app


@pytest.fixture
def folder(tmp_path):
    for number in range(2):
        columns = rollout([30, 8, 17, 40, 12, 9, 25, 31], seed=number)
        torch.save(format_2(columns, [(list(range(8)), [[5, 3]])], number), tmp_path / f"{number}.pt")
    return tmp_path


def test_page_figures_tables_and_a_table_on_the_terminal(folder):
    out = folder / "out"
    result = sat_slime_command("replay", folder, "--out", out)
    assert result.exit_code == 0, result.output
    assert "2 optimizer steps, 16 responses" in result.output
    assert re.search(r"^(SAT|sat|Here|No two).*\.$", result.output, re.MULTILINE), "the sentence that answers"
    assert re.search(r"^sat-gspo +\d", result.output, re.MULTILINE)
    page = (out / "report.html").read_text()
    page = re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)  # Vega
    assert not re.search(r'(src|href)="(?!data:|#|figures/|tables/)', page)  # stands alone
    for link in re.findall(r'href="((?:figures|tables)/[^"]+)"', page):
        assert (out / link).stat().st_size > 0, link
    assert '<section id="fates">' in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    rows = list(csv.DictReader((out / "tables" / "methods.csv").open()))
    for row in rows:
        parts = [int(row[key]) for key in row if re.match("(kept|re-weighted|masked|clipped),", key)]
        assert len(parts) == 16 and sum(parts) == int(row["tokens"]) > 0
    again = sat_slime_command("replay", folder, "--out", out, "--methods", "gspo")
    assert again.exit_code == 0  # its own page it writes anew


def test_a_skipped_file_shows_in_the_exit_code_the_output_and_the_page(folder):
    (folder / "5.pt").write_bytes(b"torn")
    result = sat_slime_command("replay", folder, "--methods", "grpo,spo", "--out", folder / "out")
    assert result.exit_code == 1 and f"skipped: {folder / '5.pt'}: it is not a complete torch file" in result.output
    assert "5.pt: it is not a complete torch file" in (folder / "out" / "report.html").read_text()


def test_a_narrow_terminal_breaks_headers_and_loses_no_number(folder):
    words = ["replay", str(folder), "--methods", "gspo", "--out", str(folder / "out")]
    wide, narrow = (CliRunner().invoke(app, words, env={"COLUMNS": columns}).output for columns in ("300", "40"))
    (row,), (again,) = (re.findall(r"^gspo .*", said, re.MULTILINE) for said in (wide, narrow))
    assert row.split() == again.split() and len(row.split()) == 8
    assert "clipped A > 0" in wide
    assert len(narrow.splitlines()) > len(wide.splitlines())
