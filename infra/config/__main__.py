"""`python -m infra.config`: write the JSON Schema of the stack file."""

from infra.config.schema import FILE, text

FILE.write_text(text(), encoding="utf-8")
print(f"written: {FILE.name}")
