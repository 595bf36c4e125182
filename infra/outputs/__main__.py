"""`python -m infra.outputs`: write the JSON Schema of the outputs and the table of their fields."""

from infra.outputs.fields import PAGE, SCHEMA, page, schema_text

SCHEMA.write_text(schema_text(), encoding="utf-8")
PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
print(f"written: {SCHEMA.name}, {PAGE.name}")
