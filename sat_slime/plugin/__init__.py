"""This package holds everything that touches slime.

The modules beside this one hold what slime calls by its dotted path, and `driver`, which runs slime's classes in our
order. They stand on `inside`, which also runs in slime's processes; `launch` starts and follows a run; `cpu` lets slime
run without a GPU.
"""
