//! Statements with their values, ready to be sent.
//!
//! Every value has its type here and not by PostgreSQL's inference, so that a statement can be
//! sent without having been prepared.

use std::{borrow::Cow, fmt};

use tokio_postgres::types::{ToSql, Type};

/// A value with its type.
pub(crate) struct Param<'a> {
    pub(crate) value: Box<dyn ToSql + Send + Sync + 'a>,
    pub(crate) kind: Type,
}

impl<'a> Param<'a> {
    pub(crate) fn new(value: impl ToSql + Send + Sync + 'a, kind: Type) -> Self {
        Self {
            value: Box::new(value),
            kind,
        }
    }

    pub(crate) fn text(value: &'a str) -> Self {
        Self::new(value, Type::TEXT)
    }

    pub(crate) fn integer(value: i64) -> Self {
        Self::new(value, Type::INT8)
    }

    /// A count; more than fit are as good as all.
    pub(crate) fn count(value: usize) -> Self {
        Self::integer(i64::try_from(value).unwrap_or(i64::MAX))
    }

    pub(crate) fn texts(values: Vec<&'a str>) -> Self {
        Self::new(values, Type::TEXT_ARRAY)
    }

    pub(crate) fn owned_texts(values: Vec<String>) -> Self {
        Self::new(values, Type::TEXT_ARRAY)
    }

    pub(crate) fn texts_or_null(values: Vec<Option<Cow<'a, str>>>) -> Self {
        Self::new(values, Type::TEXT_ARRAY)
    }

    pub(crate) fn integers(values: Vec<i64>) -> Self {
        Self::new(values, Type::INT8_ARRAY)
    }

    pub(crate) fn integers_or_null(values: Vec<Option<i64>>) -> Self {
        Self::new(values, Type::INT8_ARRAY)
    }

    pub(crate) fn bytes(values: Vec<Option<&'a [u8]>>) -> Self {
        Self::new(values, Type::BYTEA_ARRAY)
    }
}

/// One message to the server.
pub(crate) struct Step<'a> {
    pub(crate) sql: Cow<'a, str>,
    /// `None` for commands, which have no values and give no rows.
    pub(crate) params: Option<Vec<Param<'a>>>,
    /// Whether the statement is worth preparing.
    pub(crate) repeats: bool,
}

impl fmt::Debug for Step<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.sql)
    }
}

impl<'a> Step<'a> {
    /// A command, or several.
    pub(crate) fn command(sql: impl Into<Cow<'a, str>>) -> Self {
        Self {
            sql: sql.into(),
            params: None,
            repeats: false,
        }
    }

    /// A statement that comes again and again.
    pub(crate) fn new(sql: impl Into<Cow<'a, str>>, params: Vec<Param<'a>>) -> Self {
        Self {
            sql: sql.into(),
            params: Some(params),
            repeats: true,
        }
    }

    /// A statement whose text does not come again.
    pub(crate) fn once(sql: impl Into<Cow<'a, str>>, params: Vec<Param<'a>>) -> Self {
        Self {
            repeats: false,
            ..Self::new(sql, params)
        }
    }

    pub(crate) fn types(&self) -> Vec<Type> {
        let params = self.params.as_deref().unwrap_or_default();
        params.iter().map(|param| param.kind.clone()).collect()
    }
}
