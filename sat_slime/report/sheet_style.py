"""The frame of a comparison's report.html."""

from sat_slime.report.html import HEAD
from sat_slime.report.html import STYLE as RUN_STYLE

STYLE = (
    RUN_STYLE
    + """
body { max-width: 68rem; }
section { margin-top: 2.6rem; }
section > p, figure p { margin: 0 0 .7rem; color: var(--dim); font-size: .95rem; }
figure img { max-width: 40rem; }
th.group { text-align: center; color: var(--ink); font-weight: 600; border-left: 1px solid var(--rule); }
th:first-child { position: sticky; left: 0; background: var(--paper); }
th[scope=row] { min-width: 10.5rem; }
tr.head th { color: var(--dim); font-weight: 400; }
tr.part th { text-align: left; font-weight: 600; padding-top: .8rem; }
table { font-size: .85rem; }
td { white-space: pre-line; }
td + td { white-space: pre; }
td:last-child { white-space: pre-line; }
.files { font-size: .85rem; margin: .4rem 0 0; overflow-wrap: anywhere; }
code { font-size: .92em; }
nav { columns: 14rem auto; font-size: .92rem; margin: 1.4rem 0 0; }
nav a { display: block; }
@media (max-width: 40rem) {
  th[scope=row] { min-width: 6.5rem; max-width: 7.5rem; }
  body { padding: 1.2rem .8rem 3rem; }
  table { font-size: .8rem; }
}
@media print { figure, table { break-inside: avoid; } }
"""
)

PAGE = (
    HEAD
    + """<p class="subtitle">{subtitle}</p>
<div class="summary">{summary}</div>
<nav>{contents}</nav>
{body}
<section id="limits"><h2>What the figures do not show</h2><ul>{limits}</ul></section>
<section id="rules"><h2>Rules and tests</h2><p>{test}</p><pre>{rule}</pre>
<p>Paper: {source}.</p><p>This page again: <code>{command}</code></p></section>
{runs}
</body>
</html>
"""
)
