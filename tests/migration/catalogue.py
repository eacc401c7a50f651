"""What Postgres itself says about a schema's tables, in a form that two schemas can be compared by."""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlalchemy as sa

__all__ = ["Catalogue", "differences", "read_catalogue"]

_COLUMNS = """
SELECT c.relname || '.' || a.attname,
       format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
       || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')
       || CASE WHEN a.attidentity <> '' THEN ' IDENTITY ' || a.attidentity::text ELSE '' END
       || CASE WHEN a.attgenerated <> '' THEN ' GENERATED ' || a.attgenerated::text ELSE '' END
  FROM pg_attribute a
  JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p')
   AND c.relnamespace = (:schema)::regnamespace
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attnum > 0 AND NOT a.attisdropped
"""

_CONSTRAINTS = """
SELECT conrelid::regclass || '.' || conname,
       pg_get_constraintdef(oid)
       || CASE WHEN condeferrable THEN ' deferrable' ELSE '' END
       || CASE WHEN condeferred THEN ' deferred' ELSE '' END
       || CASE WHEN convalidated THEN '' ELSE ' not valid' END
  FROM pg_constraint WHERE connamespace = (:schema)::regnamespace AND conrelid <> 0
"""

_INDEXES = """
SELECT indexrelid::regclass::text,
       replace(pg_get_indexdef(indexrelid), ' ON ' || (:schema)::regnamespace || '.', ' ON ')
       || CASE WHEN indisvalid THEN '' ELSE ' invalid' END
  FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid AND c.relnamespace = (:schema)::regnamespace
"""

_OURS = "schema_version"  # Alembic's own table, which the metadata does not describe


@dataclass(frozen=True)
class Catalogue:
    """Definitions by name; a table shows as its columns."""

    columns: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, str] = field(default_factory=dict)
    indexes: dict[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> set[str]:
        return {name.split(".")[0] for name in self.columns}


def read_catalogue(connection: sa.Connection, schema: str) -> Catalogue:
    """Read it with the schema alone in the search path, so that no definition names a schema."""
    connection.execute(sa.text(f'SET LOCAL search_path TO "{schema}"'))
    parts: list[dict[str, str]] = []
    for query in (_COLUMNS, _CONSTRAINTS, _INDEXES):
        rows = connection.execute(sa.text(query), {"schema": schema})
        parts.append({name: definition for name, definition in rows if not name.startswith(_OURS)})
    return Catalogue(*parts)


def differences(left: Catalogue, right: Catalogue) -> list[str]:
    """One line for each definition that only one side has or that the sides spell differently."""
    found: list[str] = []
    for kind in ("columns", "constraints", "indexes"):
        one, other = getattr(left, kind), getattr(right, kind)
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) != other.get(name):
                found.append(f"{kind} {name}: {one.get(name)} | {other.get(name)}")
    return found
