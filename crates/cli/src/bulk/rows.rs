//! Rows from and to text, one at a time: a file of any size takes the memory of one row.

use std::io::{BufRead, Write};

use anyhow::{Context as _, anyhow, ensure};
use serde_json::{Map, Value as Json, json};
use tidewater_model::ColumnType;
use tidewater_schema::{Table, json_row};
use tidewater_wire::row::Column;

use super::Format;

/// Longest line of a file: a row is far smaller.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A row with the line it stands on.
pub(super) struct SourceRow {
    pub(super) line: u64,
    pub(super) row_id: String,
    pub(super) payload: Vec<u8>,
}

/// Reads rows of a table.
pub(super) struct RowReader<'a> {
    table: &'a Table,
    source: Source<'a>,
}

enum Source<'a> {
    Jsonl {
        lines: Box<dyn BufRead + 'a>,
        line: u64,
    },
    Csv {
        records: csv::Reader<Box<dyn BufRead + 'a>>,
        header: Vec<usize>,
    },
}

impl<'a> RowReader<'a> {
    pub(super) fn new(
        table: &'a Table,
        format: Format,
        input: Box<dyn BufRead + 'a>,
    ) -> anyhow::Result<Self> {
        let source = match format {
            Format::Jsonl => Source::Jsonl {
                lines: input,
                line: 0,
            },
            Format::Csv => {
                let mut records = csv::Reader::from_reader(input);
                let header = records
                    .headers()
                    .context("read the header line")?
                    .iter()
                    .map(|name| {
                        table
                            .column(name)
                            .with_context(|| format!("there is no column {name:?}"))
                    })
                    .collect::<anyhow::Result<_>>()?;
                Source::Csv { records, header }
            }
        };
        Ok(Self { table, source })
    }

    /// The next row; `None` at the end.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<SourceRow>> {
        let Some((line, values)) = self.next_values()? else {
            return Ok(None);
        };
        let at = || format!("line {line}");
        let payload = json_row::row_from_json(self.table, &values).with_context(at)?;
        let row_id = row_id(self.table, &payload).with_context(at)?;
        Ok(Some(SourceRow {
            line,
            row_id,
            payload,
        }))
    }

    fn next_values(&mut self) -> anyhow::Result<Option<(u64, Map<String, Json>)>> {
        match &mut self.source {
            Source::Jsonl { lines, line } => loop {
                let mut text = String::new();
                let mut bounded = std::io::Read::take(&mut *lines, LINE_BYTES_MAX);
                let read = bounded.read_line(&mut text).context("read a line")?;
                if read == 0 {
                    return Ok(None);
                }
                *line += 1;
                ensure!(
                    text.ends_with('\n') || bounded.limit() > 0,
                    "line {line} is longer than {LINE_BYTES_MAX} bytes"
                );
                if text.trim().is_empty() {
                    continue;
                }
                let values = serde_json::from_str(&text)
                    .with_context(|| format!("line {line} is no JSON object"))?;
                return Ok(Some((*line, values)));
            },
            Source::Csv { records, header } => {
                let mut record = csv::StringRecord::new();
                if !records.read_record(&mut record).context("read a record")? {
                    return Ok(None);
                }
                let line = record.position().map_or(0, csv::Position::line);
                let mut values = Map::new();
                for (&column, text) in header.iter().zip(&record) {
                    let column = &self.table.columns[column];
                    let value = csv_value(column, text)
                        .with_context(|| format!("line {line}, column {:?}", column.name))?;
                    values.insert(column.name.clone(), value);
                }
                Ok(Some((line, values)))
            }
        }
    }
}

fn row_id(table: &Table, payload: &[u8]) -> anyhow::Result<String> {
    let fields = tidewater_wire::row::decode_row(&table.columns, payload)?;
    let key = fields[table.primary_key]
        .as_ref()
        .and_then(|field| field.value.render());
    let key = key.ok_or_else(|| anyhow!("the primary key is empty"))?;
    Ok(key.into_owned())
}

/// The text of a CSV field as JSON. An empty field of a nullable column is NULL.
fn csv_value(column: &Column, text: &str) -> anyhow::Result<Json> {
    if text.is_empty() && column.nullable {
        return Ok(Json::Null);
    }
    Ok(match column.kind {
        ColumnType::String | ColumnType::Json | ColumnType::BlobRef => json!(text),
        ColumnType::Integer => json!(text.parse::<i64>().context("no whole number")?),
        ColumnType::Float => match text.parse::<f64>().context("no number")? {
            number if number.is_finite() => json!(number),
            _ => json!({ "$float": text }),
        },
        ColumnType::Boolean => json!(text.parse::<bool>().context("neither true nor false")?),
        ColumnType::Bytes | ColumnType::Crdt => json!({ "$bytes": text }),
    })
}

/// Writes rows of a table.
pub(super) struct RowWriter<'a, W: Write> {
    table: &'a Table,
    target: Target<W>,
}

enum Target<W: Write> {
    Jsonl(W),
    Csv(Box<csv::Writer<W>>),
}

impl<'a, W: Write> RowWriter<'a, W> {
    pub(super) fn new(table: &'a Table, format: Format, output: W) -> anyhow::Result<Self> {
        let target = match format {
            Format::Jsonl => Target::Jsonl(output),
            Format::Csv => {
                let mut records = csv::Writer::from_writer(output);
                records.write_record(table.columns.iter().map(|column| &column.name))?;
                Target::Csv(Box::new(records))
            }
        };
        Ok(Self { table, target })
    }

    pub(super) fn write(&mut self, payload: &[u8]) -> anyhow::Result<()> {
        let values = json_row::row_to_json(self.table, payload)?;
        match &mut self.target {
            Target::Jsonl(output) => {
                serde_json::to_writer(&mut *output, &values)?;
                output.write_all(b"\n")?;
            }
            Target::Csv(records) => {
                let columns = self.table.columns.iter();
                records.write_record(columns.map(|column| csv_text(&values[&column.name])))?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> anyhow::Result<()> {
        match self.target {
            Target::Jsonl(mut output) => output.flush()?,
            Target::Csv(mut records) => records.flush()?,
        }
        Ok(())
    }
}

fn csv_text(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        Json::Object(members) => members
            .values()
            .next()
            .and_then(Json::as_str)
            .unwrap_or_default()
            .to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use tidewater_schema::Schema;

    use super::*;

    fn schema() -> Schema {
        Schema::from_json(
            r#"{"version": 1, "tables": [{"name": "t", "primaryKey": "id", "scopes": ["s:{s}"],
                "columns": [
                  {"name": "id", "type": "string", "nullable": false},
                  {"name": "s", "type": "string", "nullable": false},
                  {"name": "f", "type": "float", "nullable": true},
                  {"name": "b", "type": "boolean", "nullable": true},
                  {"name": "raw", "type": "bytes", "nullable": true}]}]}"#,
        )
        .unwrap()
    }

    fn read(format: Format, text: &str) -> anyhow::Result<Vec<(u64, String, Vec<u8>)>> {
        let schema = schema();
        let input: Box<dyn BufRead + '_> = Box::new(text.as_bytes());
        let mut reader = RowReader::new(&schema.tables()[0], format, input)?;
        let mut rows = Vec::new();
        while let Some(row) = reader.next()? {
            rows.push((row.line, row.row_id, row.payload));
        }
        Ok(rows)
    }

    #[track_caller]
    fn check_round_trip(format: Format, text: &str) {
        let schema = schema();
        let mut out = Vec::new();
        let mut writer = RowWriter::new(&schema.tables()[0], format, &mut out).unwrap();
        for (_, _, payload) in read(format, text).unwrap() {
            writer.write(&payload).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }

    #[test]
    fn what_was_read_is_written_again() {
        check_round_trip(
            Format::Jsonl,
            "{\"id\":\"1\",\"s\":\"x\",\"f\":0.5,\"b\":true,\"raw\":{\"$bytes\":\"00ff\"}}\n\
             {\"id\":\"2\",\"s\":\"x\",\"f\":{\"$float\":\"NaN\"},\"b\":null,\"raw\":null}\n",
        );
        check_round_trip(
            Format::Csv,
            "id,s,f,b,raw\n1,\"x, y\",0.5,true,00ff\n2,x,NaN,,\n",
        );
    }

    #[track_caller]
    fn check_refused(format: Format, text: &str, expected: &str) {
        let error = read(format, text).unwrap_err();
        assert_eq!(format!("{error:#}"), expected);
    }

    #[test]
    fn a_bad_row_is_named_by_its_line() {
        check_refused(
            Format::Jsonl,
            "{\"id\":\"1\",\"s\":\"x\"}\n\n{\"id\":\"2\"}\n",
            "line 3: column \"s\" needs a value",
        );
        check_refused(
            Format::Csv,
            "id,s,b\n1,x,yes\n",
            "line 2, column \"b\": neither true nor false: provided string was not `true` or `false`",
        );
        check_refused(Format::Csv, "id,hue\n", "there is no column \"hue\"");
        check_refused(
            Format::Jsonl,
            "{\"id\":\"\",\"s\":\"x\"}\n",
            "line 1: the primary key is empty",
        );
    }
}
