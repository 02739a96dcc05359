//! Properties of rows and segments, on generated and on damaged ones.

use proptest::{collection::vec, prelude::*};
use tidewater_model::ColumnType;
use tidewater_wire::{
    BlobRef, RowsSegment, SegmentWriter, check_rows_segment,
    row::{Column, Value, decode_row, decode_sparse_row},
};

use crate::{
    generate::{self, full_row},
    mutate::{byte_mutation, mutated},
    oracle,
};

proptest! {
    #![proptest_config(generate::config())]

    #[test]
    fn a_full_row_survives_the_wire((columns, cells) in generate::row()) {
        let row = full_row(&cells);
        let fields = decode_row(&columns, &row).unwrap();
        for (field, cell) in fields.iter().zip(&cells) {
            prop_assert_eq!(field.map(|field| field.encoded), cell.as_deref());
            if let Some(field) = field {
                let mut again = Vec::new();
                field.value.encode(&mut again);
                prop_assert_eq!(&again[..], field.encoded);
            }
        }
        for len in 0..row.len() {
            prop_assert!(decode_row(&columns, &row[..len]).is_err());
        }
    }

    #[test]
    fn a_sparse_row_survives_the_wire((columns, primary_key, row) in generate::sparse_row()) {
        decode_sparse_row(&columns, primary_key, &row).unwrap();
        oracle::compare_sparse_row(&columns, primary_key, &row);
        for len in 0..row.len() {
            prop_assert!(decode_sparse_row(&columns, primary_key, &row[..len]).is_err());
        }
    }

    #[test]
    fn a_damaged_sparse_row_is_judged_like_the_published_codec_does(
        (columns, primary_key, row) in generate::sparse_row(),
        mutations in vec(byte_mutation(), 1..4),
    ) {
        oracle::compare_sparse_row(&columns, primary_key, &mutated(row, &mutations));
    }

    #[test]
    fn a_segment_survives_the_wire(segment in generate::segment()) {
        let bytes = segment.encode();
        prop_assert_eq!(RowsSegment::decode(&bytes), Ok(segment));
        oracle::compare_segment(&bytes);
        for len in 0..bytes.len() {
            prop_assert!(check_rows_segment(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn a_damaged_segment_is_judged_like_the_published_codec_does(
        segment in generate::segment(),
        mutations in vec(byte_mutation(), 1..4),
    ) {
        oracle::compare_segment(&mutated(segment.encode(), &mutations));
    }

    #[test]
    fn a_segment_writer_writes_a_segment(segment in generate::segment()) {
        let mut writer =
            SegmentWriter::new(&segment.table, segment.schema_version, &segment.columns);
        let rows: Vec<_> = segment.blocks.concat();
        for row in &rows {
            writer.push(row.server_version, &row.row);
        }
        let decoded = RowsSegment::decode(&writer.finish()).unwrap();
        prop_assert_eq!(decoded.blocks.concat(), rows);
        prop_assert_eq!(decoded.columns, segment.columns);
    }

    /// §1.3 of the protocol: we accept what `serde_json` reads into its own value.
    #[test]
    fn damaged_json_is_judged_like_serde_json_does(
        text in generate::json_text(),
        mutations in vec(byte_mutation(), 0..4),
    ) {
        let text = mutated(text.into_bytes(), &mutations);
        if let Ok(text) = String::from_utf8(text) {
            let theirs = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert_eq!(accepts(ColumnType::Json, &text), theirs);
        }
    }

    #[test]
    fn a_damaged_blob_reference_is_judged_like_the_published_codec_does(
        text in generate::blob_ref(),
        mutations in vec(byte_mutation(), 0..4),
    ) {
        let text = mutated(text.into_bytes(), &mutations);
        if let Ok(text) = String::from_utf8(text) {
            let theirs = ssp2::blob_ref::validate_blob_ref(&text).is_ok();
            prop_assert_eq!(BlobRef::is_valid(&text), theirs);
            prop_assert_eq!(accepts(ColumnType::BlobRef, &text), theirs);
        }
    }

    #[test]
    fn a_float_is_rendered_as_text_that_reads_back(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        let text = Value::Float(value).render().unwrap();
        let read: f64 = text.parse().unwrap();
        prop_assert!(read == value || (read.is_nan() && value.is_nan()));
    }
}

fn accepts(kind: ColumnType, text: &str) -> bool {
    let column = Column {
        name: "value".to_owned(),
        kind,
        nullable: false,
    };
    let mut row = vec![0];
    Value::String(text).encode(&mut row);
    decode_row(&[column], &row).is_ok()
}
