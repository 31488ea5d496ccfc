//! Protobuf bodies as Kubernetes' own serializer writes them, against the JSON that a real server makes of them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read as _;

use moorline_machinery::{
    facts::Facts,
    protobuf::{self, ProtobufError},
};
use proptest::prelude::*;
use serde_json::{Value, json};

const FACTS: &str = include_str!("../../apiserver/facts/builtin.txt");
const BODIES: &[u8] = include_bytes!("fixtures/bodies.bin.gz");

fn facts() -> Facts {
    Facts::parse(FACTS).unwrap()
}

/// Protobuf bodies, each with its JSON.
fn bodies() -> Vec<(Vec<u8>, Value)> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(BODIES).read_to_end(&mut bytes).unwrap();
    let mut rest = bytes.as_slice();
    let mut part = || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (part, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        rest = after;
        Some(part)
    };
    let mut bodies = Vec::new();
    while let (Some(protobuf), Some(json)) = (part(), part()) {
        bodies.push((protobuf.to_vec(), serde_json::from_slice(json).unwrap()));
    }
    bodies
}

#[test]
fn every_kind_decodes_to_what_a_real_server_decodes() {
    let facts = facts();
    let bodies = bodies();
    assert!(bodies.len() > 400, "{}", bodies.len());
    for (protobuf, expected) in bodies {
        let decoded = protobuf::decode(&facts, &protobuf).unwrap();
        assert_eq!(decoded, expected, "{} {}", expected["apiVersion"], expected["kind"]);
    }
}

#[test]
fn every_kind_of_the_table_is_among_the_bodies() {
    let facts = facts();
    let bodies = bodies();
    for (api_version, kind, _) in facts.kinds() {
        let found = bodies
            .iter()
            .any(|(_, value)| value["apiVersion"] == api_version && value["kind"] == kind);
        assert!(found, "{api_version} {kind}");
    }
}

#[test]
fn truncated_bodies_are_errors_or_less_and_never_a_panic() {
    let facts = facts();
    for (protobuf, _) in bodies().into_iter().step_by(7) {
        for length in (0..protobuf.len()).step_by(1 + protobuf.len() / 50) {
            let _ = protobuf::decode(&facts, &protobuf[..length]);
        }
    }
}

#[test]
fn unknown_kinds_and_foreign_envelopes_are_refused() {
    let facts = facts();
    assert_eq!(protobuf::decode(&facts, b"{}"), Err(ProtobufError::NoMagic));
    let unknown = b"k8s\0\x0a\x08\x0a\x02v1\x12\x02No".as_slice();
    assert_eq!(
        protobuf::decode(&facts, unknown).unwrap_err().to_string(),
        "no kind \"No\" is registered for version \"v1\""
    );
    let foreign = b"k8s\0\x22\x10application/json".as_slice();
    assert!(matches!(
        protobuf::decode(&facts, foreign),
        Err(ProtobufError::Enveloped { .. })
    ));
}

#[test]
fn options_of_any_version_are_read() {
    let body = b"k8s\0\x0a\x18\x0a\x07apps/v1\x12\x0dDeleteOptions\x12\x02\x08\x05".as_slice();
    assert_eq!(
        protobuf::decode(&facts(), body).unwrap(),
        json!({"apiVersion": "apps/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 5})
    );
    assert_eq!(
        protobuf::type_meta(body).unwrap(),
        ("apps/v1".to_owned(), "DeleteOptions".to_owned())
    );
}

#[test]
fn a_small_body_cannot_become_a_giant_value() {
    // Two bytes for each pod of a list, each of which becomes an object of its empty fields.
    let mut raw = Vec::new();
    for _ in 0..1_000_000 {
        raw.extend_from_slice(&[0x12, 0x00]);
    }
    let facts = facts();
    let pods = facts.kind("v1", "PodList").unwrap();
    assert_eq!(
        protobuf::decode_message(&facts, pods, &raw),
        Err(ProtobufError::TooLarge)
    );
}

#[test]
fn nesting_is_bounded() {
    let facts = facts();
    let schema = facts
        .definition("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps")
        .unwrap();
    let not = facts.field(schema, "not").unwrap().number;
    let mut bytes = Vec::new();
    for _ in 0..2_000 {
        let mut outer = Vec::new();
        varint(u64::from(not) << 3 | 2, &mut outer);
        varint(bytes.len() as u64, &mut outer);
        outer.extend_from_slice(&bytes);
        bytes = outer;
    }
    assert_eq!(
        protobuf::decode_message(&facts, schema, &bytes),
        Err(ProtobufError::TooLarge)
    );
}

fn varint(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    into.push(u8::try_from(value).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let facts = facts();
        for (_, _, kind) in facts.kinds().step_by(11) {
            let _ = protobuf::decode_message(&facts, kind, &bytes);
        }
    }

    #[test]
    fn no_change_to_a_body_makes_the_decoder_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        thread_local! {
            static BODIES: (Facts, Vec<(Vec<u8>, Value)>) = (facts(), bodies());
        }
        BODIES.with(|(facts, bodies)| {
            let mut body = which.get(bodies).0.clone();
            for (at, byte) in changes {
                let at = at.index(body.len());
                body[at] = byte;
            }
            let _ = protobuf::decode(facts, &body);
        });
    }
}
