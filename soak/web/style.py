"""The page's style sheet; light or dark as the reader's system is."""

STYLE = """\
:root { --ink: #1c2126; --faint: #667079; --line: #d9dee3; --paper: #ffffff;
  --pass: #1a7f37; --fail: #c62828; --inconclusive: #9a6700; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8eb; --faint: #98a3ad; --line: #333b43; --paper: #14181c;
    --pass: #4cc26a; --fail: #ff7b72; --inconclusive: #e0b040; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { margin: 0 0 12px; font-size: 30px; overflow-wrap: anywhere; }
h2 { margin: 32px 0 8px; font-size: 18px; }
h1.pass { color: var(--pass); }
h1.fail { color: var(--fail); }
h1.inconclusive { color: var(--inconclusive); }
progress { width: 100%; height: 14px; }
.trouble { border-left: 6px solid var(--fail); margin: 12px 0; padding: 4px 14px; }
dl { display: grid; grid-template-columns: 6em 1fr; gap: 2px 16px; }
dt, th, footer { color: var(--faint); font-weight: 400; }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 14px 4px 8px; border-bottom: 1px solid var(--line); }
th, td { text-align: left; vertical-align: top; }
td:first-child { border-left: 4px solid transparent; }
tr.pass td:first-child { border-left-color: var(--pass); }
tr.fail td:first-child { border-left-color: var(--fail); }
tr.unknown td:first-child, tr.inconclusive td:first-child { border-left-color: var(--inconclusive); }
footer { margin-top: 32px; }
a { color: inherit; }
"""
