//! What an image costs: wall and CPU time of a build, its size, and the memory it took.
//!
//! `cargo bench -p tidewater-image --bench image` builds one of 100,000 rows of about 67 encoded
//! bytes a few times, then one of a million: peak memory must not follow.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::as_conversions,
    reason = "a benchmark"
)]

use std::{fs, sync::Arc, time::Instant};

use serde_json::json;
use tidewater_image::{ImageSpec, ImageWriter};
use tidewater_model::CommitSeq;
use tidewater_schema::{Schema, TableIndex};
use tidewater_wire::row::{RowWriter, Value};

fn main() {
    let column = |name: &str, kind: &str, nullable: bool| json!({"name": name, "type": kind, "nullable": nullable});
    let document = json!({
        "irVersion": 1, "schemaVersion": 1,
        "tables": [{
            "name": "tasks", "primaryKey": "id",
            "columns": [
                column("id", "string", false), column("project_id", "string", false),
                column("title", "string", false), column("done", "boolean", false),
                column("rank", "integer", true), column("note", "string", true),
            ],
            "scopes": [
                {"pattern": "project:{project_id}", "variable": "project_id", "column": "project_id"}
            ],
        }],
    });
    let schema = Schema::from_json(&document.to_string()).unwrap();
    println!(
        "{:<10} {:>8} {:>8} {:>10} {:>9} {:>9}",
        "rows", "wall ms", "CPU ms", "rows/s", "MB", "peak MB"
    );
    for rows in [100_000, 100_000, 100_000, 1_000_000] {
        build(&schema, rows);
    }
}

fn build(schema: &Schema, rows: u64) {
    let spec = ImageSpec {
        table: Arc::clone(schema.table(TableIndex(0))),
        schema_version: 1,
        as_of: CommitSeq::new(1).unwrap(),
        scope_digest: "0".repeat(64),
    };
    let pieces: Vec<Vec<Vec<u8>>> = (0..rows / PIECE).map(piece).collect();
    let resident = status("VmRSS");
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let (begun, cpu) = (Instant::now(), cpu_ms());
    let mut writer = ImageWriter::create(None, spec).unwrap();
    for piece in &pieces {
        writer.push(piece.iter().map(|row| (1, &row[..]))).unwrap();
    }
    let image = writer.finish().unwrap();
    let wall = begun.elapsed();
    println!(
        "{rows:<10} {:>8} {:>8} {:>10.0} {:>9.2} {:>9.1}",
        wall.as_millis(),
        cpu_ms() - cpu,
        rows as f64 / wall.as_secs_f64(),
        image.byte_length as f64 / 1e6,
        (status("VmHWM") - resident) as f64 / 1e3,
    );
}

const PIECE: u64 = 2_000;

fn piece(number: u64) -> Vec<Vec<u8>> {
    let rows = number * PIECE..(number + 1) * PIECE;
    rows.map(|number| {
        let mut row = RowWriter::new(6);
        row.value(&Value::String(&format!("task-{number:08}")));
        row.value(&Value::String("p1"));
        row.value(&Value::String(&format!("Title of task {number}")));
        row.value(&Value::Boolean(number % 2 == 0));
        row.value(&Value::Integer(number as i64));
        row.null();
        row.finish()
    })
    .collect()
}

/// A figure of the process in kB.
fn status(name: &str) -> i64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn cpu_ms() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    (ticks(11) + ticks(12)) * 10
}
