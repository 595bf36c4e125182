"""`python -m infra.config`: write the JSON Schema of the stack file, and the tables of docs/words.md."""

from infra.config import foreign_keys
from infra.config.schema import FILE, text

FILE.write_text(text(), encoding="utf-8")
PAGE = FILE.parents[2] / "docs" / "words.md"
head, mark, _ = PAGE.read_text(encoding="utf-8").partition("## slurm-gcp")
PAGE.write_text(head + "\n".join(foreign_keys.rows()) + "\n", encoding="utf-8")
print(f"written: {FILE.name}, {PAGE.name}")
