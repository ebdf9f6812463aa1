"""The report of a run: one HTML file that needs nothing else.

python -m prover_mini.report runs/NAME                 writes runs/NAME/report.html
python -m prover_mini.report runs/A runs/B --out x.html    several runs side by side

collect.py     the files of a run -> what the page shows, as plain data
keep.py        which groups fit into the file
build.py       data, style and program -> one file
page/          that style and program: HTML, CSS and JavaScript without a library
"""
