//! Rows as CEL values: text and bytes are borrowed, JSON is parsed, NULL is `null`.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use cel::common::{
    types::{
        CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString,
        CelUInt,
    },
    value::Val,
};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use tidewater_schema::Table;
use tidewater_wire::row::{Value, decode_row};

use super::{
    EvaluationError,
    meter::{Meter, Spent},
};

type Boxed<'v> = Box<dyn Val + 'v>;

/// Bytes of JSON text that cost a step to read, whatever is in them.
const JSON_BYTES_PER_STEP: usize = 64;

/// The columns that an expression reads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Columns {
    /// These, by position.
    Named(BTreeSet<usize>),
    /// All that are offered.
    All,
}

impl Default for Columns {
    fn default() -> Self {
        Self::Named(BTreeSet::new())
    }
}

impl Columns {
    pub(super) fn add(&mut self, column: usize) {
        if let Self::Named(columns) = self {
            columns.insert(column);
        }
    }

    fn contain(&self, column: usize) -> bool {
        match self {
            Self::Named(columns) => columns.contains(&column),
            Self::All => true,
        }
    }
}

/// A row as a map; no row is `null`.
pub(super) fn row<'v>(
    table: &'v Table,
    payload: Option<&'v [u8]>,
    columns: &Columns,
    meter: &Meter,
) -> Result<Boxed<'v>, EvaluationError> {
    let Some(payload) = payload else {
        return Ok(Box::new(CelNull));
    };
    let fields = decode_row(&table.columns, payload).map_err(|_| EvaluationError::Row)?;
    let mut map: HashMap<CelMapKey<'v>, Boxed<'v>> = HashMap::new();
    for (at, field) in fields.into_iter().enumerate() {
        if !columns.contain(at) || table.metas[at].encrypted {
            continue;
        }
        let value = match field {
            None => Box::new(CelNull),
            Some(field) => column(field.value, meter)?,
        };
        map.insert(CelMapKey::from(table.columns[at].name.as_str()), value);
    }
    Ok(Box::new(CelMap::from(map)))
}

fn column<'v>(value: Value<'v>, meter: &Meter) -> Result<Boxed<'v>, EvaluationError> {
    Ok(match value {
        Value::String(text) => Box::new(CelString::from(text)),
        Value::Integer(number) => Box::new(CelInt::from(number)),
        Value::Float(number) => Box::new(CelDouble::from(number)),
        Value::Boolean(value) => Box::new(CelBool::from(value)),
        Value::Bytes(bytes) | Value::Crdt(bytes) => Box::new(CelBytes::from(bytes)),
        Value::Json(text) | Value::BlobRef(text) => json(text, meter)?,
    })
}

/// A JSON document as a value, made while it is read so that the budget bounds it.
fn json<'v>(text: &'v str, meter: &Meter) -> Result<Boxed<'v>, EvaluationError> {
    let steps = u64::try_from(text.len() / JSON_BYTES_PER_STEP).unwrap_or(u64::MAX);
    meter.spend(steps).map_err(|Spent| EvaluationError::Spent)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    match Json(meter).deserialize(&mut reader) {
        Ok(value) => Ok(value),
        Err(_) if meter.is_spent() => Err(EvaluationError::Spent),
        Err(_) => Err(EvaluationError::Row),
    }
}

#[derive(Clone, Copy)]
struct Json<'m>(&'m Meter);

impl Json<'_> {
    fn step<E: Error>(self) -> Result<(), E> {
        self.0
            .spend(1)
            .map_err(|Spent| E::custom("no steps are left"))
    }
}

impl<'v> DeserializeSeed<'v> for Json<'_> {
    type Value = Boxed<'v>;

    fn deserialize<D: Deserializer<'v>>(self, reader: D) -> Result<Boxed<'v>, D::Error> {
        self.step()?;
        reader.deserialize_any(self)
    }
}

impl<'v> Visitor<'v> for Json<'_> {
    type Value = Boxed<'v>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelNull))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelBool::from(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelInt::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Boxed<'v>, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => Box::new(CelInt::from(value)),
            Err(_) => Box::new(CelUInt::from(value)),
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelDouble::from(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelString::from(value.to_owned())))
    }

    fn visit_borrowed_str<E>(self, value: &'v str) -> Result<Boxed<'v>, E> {
        Ok(Box::new(CelString::from(value)))
    }

    fn visit_seq<A: SeqAccess<'v>>(self, mut list: A) -> Result<Boxed<'v>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Box::new(CelList::from(values)))
    }

    fn visit_map<A: MapAccess<'v>>(self, mut map: A) -> Result<Boxed<'v>, A::Error> {
        let mut values: HashMap<CelMapKey<'v>, Boxed<'v>> = HashMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(self)?;
            values.insert(CelMapKey::from(key), value);
        }
        Ok(Box::new(CelMap::from(values)))
    }
}
