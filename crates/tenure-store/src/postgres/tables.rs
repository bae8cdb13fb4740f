//! The names of the tables, and statements with the names filled in.

use crate::error::StoreError;

/// Marks our advisory locks among those of others: the letters `TN`, in the highest bytes.
const LOCK_CLASS: i64 = 0x544E << 48;

/// The schema and the table that hold a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableNames {
    pub(super) schema: String,
    pub(super) table: String,
}

impl TableNames {
    pub(super) const SCHEMA: &str = "tenure";
    pub(super) const TABLE: &str = "kv";
    /// PostgreSQL cuts names at 63 bytes, and what belongs to the table has its name and some more.
    const LONGEST: usize = 48;

    /// Takes names that are plain everywhere; others are refused.
    pub(super) fn new(schema: Option<&str>, table: Option<&str>) -> Result<Self, StoreError> {
        let schema = schema.unwrap_or(Self::SCHEMA);
        let table = table.unwrap_or(Self::TABLE);
        for (what, name) in [("schema", schema), ("table", table)] {
            let first = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
            let rest = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let fits = first && name.chars().all(rest) && name.len() <= Self::LONGEST;
            if !fits || name.starts_with("pg_") {
                return Err(StoreError::denied(format!(
                    "{what} {name:?} cannot be used as a name; use up to {} lower-case letters, digits and underscores, \
                     beginning with a letter, and not with pg_",
                    Self::LONGEST
                )));
            }
        }
        Ok(Self {
            schema: schema.to_owned(),
            table: table.to_owned(),
        })
    }

    /// Replaces the words in braces by names.
    pub(super) fn fill(&self, sql: &str) -> String {
        let mut sql = sql.replace("{schema}", &format!("\"{}\"", self.schema));
        sql = sql.replace("{lock_class}", &LOCK_CLASS.to_string());
        sql = sql.replace("{kv}", &self.qualified(""));
        // Indexes live in the schema of their table and are created without naming it.
        for index in ["kv_xid", "deleted_xid"] {
            let name = format!("\"{}_{index}\"", self.table);
            sql = sql.replace(&format!("{{{index}}}"), &name);
        }
        for own in ["deleted", "writes", "state", "versions"] {
            let name = self.qualified(&format!("_{own}"));
            sql = sql.replace(&format!("{{{own}}}"), &name);
        }
        for function in ["part", "begin", "write"] {
            let name = self.qualified(&format!("_{function}"));
            sql = sql.replace(&format!("{{fn_{function}}}"), &name);
        }
        sql
    }

    fn qualified(&self, suffix: &str) -> String {
        format!("\"{}\".\"{}{suffix}\"", self.schema, self.table)
    }

    /// `schema.table`, for people.
    pub(super) fn shown(&self) -> String {
        format!("{}.{}", self.schema, self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_need_quoting_are_refused_by_name() {
        for bad in ["", "1a", "A", "a b", "a\"b", "a;b", "pg_x", &"a".repeat(49)] {
            let e = TableNames::new(Some(bad), None).unwrap_err().to_string();
            assert!(e.contains(&format!("schema {bad:?}")), "{e}");
            let e = TableNames::new(None, Some(bad)).unwrap_err().to_string();
            assert!(e.contains(&format!("table {bad:?}")), "{e}");
        }
    }

    #[test]
    fn nothing_is_left_unfilled() {
        let names = TableNames::new(Some("select"), None).unwrap();
        let filled = names.fill(include_str!("schema.sql"));
        assert!(!filled.contains('{'), "{filled}");
        assert!(filled.contains("CREATE TABLE \"select\".\"kv_deleted\""));
    }
}
