use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(text: &str) -> Value {
    json(text.as_bytes(), &Limits::default()).unwrap().value
}

fn read_yaml(text: &str) -> Value {
    yaml(text.as_bytes(), &Limits::default()).unwrap().value
}

fn refusal(text: &str) -> String {
    json(text.as_bytes(), &Limits::default()).unwrap_err().to_string()
}

#[test]
fn numbers_are_whole_within_64_bits_and_floating_beyond() {
    assert_eq!(read("9223372036854775807"), json!(i64::MAX));
    assert_eq!(read("-9223372036854775808"), json!(i64::MIN));
    assert!(read("9223372036854775808").is_f64());
    assert!(read("100000000000000000000").is_f64());
    assert!(read("1.0").is_f64());
    assert_eq!(read("-0"), json!(0));
}

#[test]
fn repeated_names_are_told_with_their_path_and_the_last_wins() {
    let text = r#"{"data": {"a": 1, "a": 2}, "spec": {"list": [{}, {"b": 1, "b": 1, "B": 1}]}, "data": {"a": 3}}"#;
    let decoded = json(text.as_bytes(), &Limits::default()).unwrap();
    assert_eq!(decoded.value["data"], json!({"a": 3}));
    let duplicates: Vec<String> = decoded.duplicates.iter().map(ToString::to_string).collect();
    assert_eq!(
        duplicates,
        [
            r#"duplicate field "data.a""#,
            r#"duplicate field "spec.list[1].b""#,
            r#"duplicate field "data""#
        ]
    );
}

#[test]
fn strict_validation_refuses_what_others_warn_about_or_ignore() {
    let problems = vec![
        StrictProblem::UnknownField("foo".to_owned()),
        StrictProblem::DuplicateField("data.a".to_owned()),
    ];
    let error = FieldValidation::Strict.judge(problems.clone()).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"strict decoding error: unknown field "foo", duplicate field "data.a""#
    );
    let warnings = FieldValidation::Warn.judge(problems.clone()).unwrap();
    assert_eq!(warnings, [r#"unknown field "foo""#, r#"duplicate field "data.a""#]);
    assert_eq!(FieldValidation::Ignore.judge(problems), Ok(vec![]));
    assert_eq!(FieldValidation::Strict.judge(vec![]), Ok(vec![]));
    assert_eq!(
        FieldValidation::parse("Loose").unwrap_err().to_string(),
        r#"fieldValidation: Unsupported value: "Loose": supported values: "", "Ignore", "Strict", "Warn""#
    );
}

#[test]
fn mistakes_are_told_in_go_words() {
    for (text, words) in [
        ("", "unexpected end of JSON input"),
        ("{\"a\"", "unexpected end of JSON input"),
        ("hello", "invalid character 'h' looking for beginning of value"),
        (
            "{a: 1}",
            "invalid character 'a' looking for beginning of object key string",
        ),
        ("{\"a\" 1}", "invalid character '1' after object key"),
        ("{\"a\": 1 \"b\"}", "invalid character '\"' after object key:value pair"),
        ("[1 2]", "invalid character '2' after array element"),
        ("{} {}", "invalid character '{' after top-level value"),
        ("{\"a\": 'b'}", r"invalid character '\'' looking for beginning of value"),
    ] {
        assert_eq!(refusal(text), words, "{text}");
    }
}

#[test]
fn depth_and_length_are_bounded() {
    let limits = Limits { bytes: 1000, depth: 10 };
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(json(nested(10).as_bytes(), &limits).is_ok());
    assert_eq!(
        json(nested(11).as_bytes(), &limits),
        Err(DecodeError::TooDeep { limit: 10 })
    );
    assert!(matches!(
        yaml(nested(11).as_bytes(), &limits),
        Err(DecodeError::TooDeep { .. } | DecodeError::Yaml(_))
    ));
    assert_eq!(json(&[b' '; 1001], &limits), Err(DecodeError::TooLong { limit: 1000 }));
    let deepest = json(
        nested(100_000).as_bytes(),
        &Limits {
            bytes: usize::MAX,
            depth: usize::MAX,
        },
    );
    assert_eq!(deepest, Err(DecodeError::TooDeep { limit: usize::MAX }));
}

#[test]
fn yaml_reads_as_the_json_it_stands_for() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  labels: {a: 'true', b: \"1\"}\n\
                data:\n  text: |\n    one\n    two\nlist:\n- 1\n- 2.5\n- true\n- null\n- ~\n- x: z\nempty:\n1: one\n";
    assert_eq!(
        read_yaml(text),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "labels": {"a": "true", "b": "1"}},
            "data": {"text": "one\ntwo\n"}, "list": [1, 2.5, true, null, null, {"x": "z"}], "empty": null, "1": "one",
        })
    );
    assert_eq!(
        read_yaml("{\"kind\": \"Pod\", \"n\": [1]}"),
        json!({"kind": "Pod", "n": [1]})
    );
    assert_eq!(
        read_yaml("a: &x {b: 1}\nc: *x\n"),
        json!({"a": {"b": 1}, "c": {"b": 1}})
    );
    assert_eq!(
        read_yaml("[0644, yes, Off, y, 0x1F, 1e3]"),
        json!([420, true, false, true, 31, 1000.0])
    );
}

#[test]
fn repeated_names_are_found_in_yaml_too() {
    let decoded = yaml(b"a:\n  b: 1\n  b: 2\n", &Limits::default()).unwrap();
    assert_eq!(decoded.value, json!({"a": {"b": 2}}));
    let repeated = StrictProblem::RepeatedName {
        line: 3,
        name: "b".to_owned(),
    };
    assert_eq!(decoded.duplicates, [repeated]);
}

#[test]
fn yaml_that_multiplies_itself_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let previous = format!("*a{}, ", level - 1).repeat(9);
        writeln!(text, "a{level}: &a{level} [{}]", previous.trim_end_matches(", ")).unwrap();
    }
    assert!(matches!(
        yaml(text.as_bytes(), &Limits::default()),
        Err(DecodeError::Yaml(_))
    ));
    assert!(yaml(b"a: 1\n---\nb: 2\n", &Limits::default()).is_err());
    assert!(yaml(b"a: [1\n", &Limits::default()).is_err());
}

#[test]
fn an_unreadable_body_is_answered_as_by_a_server() {
    let body = b"hello world, this is not any JSON";
    let why = json(body, &Limits::default()).unwrap_err();
    let answer = unrecognized("ConfigMap", why, body);
    assert_eq!(answer.code(), 400);
    assert_eq!(
        answer.to_string(),
        "the object provided is unrecognized (must be of type ConfigMap): \
         invalid character 'h' looking for beginning of value \
         (68656c6c6f20776f726c642c2074686973206973206e6f7420616e79204a ...)"
    );
    assert!(unrecognized("Pod", "x", b"").to_string().ends_with("x (<empty>)"));
    let strict = StrictError(vec![StrictProblem::UnknownField("foo".to_owned())]);
    assert_eq!(
        cannot_be_handled(&GroupVersionKind::new("", "v1", "ConfigMap"), "ConfigMap", strict).to_string(),
        r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "foo""#
    );
}

#[test]
fn what_is_no_text_or_no_float_is_read_as_go_reads_it() {
    let read = |body: &[u8]| json(body, &Limits::default()).map(|decoded| decoded.value);
    assert_eq!(read(br#"{"a": "\ud800x"}"#), Ok(json!({"a": "\u{fffd}x"})));
    assert_eq!(
        read(br#"["\udc00", "\ud83d\ude00"]"#),
        Ok(json!(["\u{fffd}", "\u{1f600}"]))
    );
    assert_eq!(read(b"\"a\xff\xfe\""), Ok(json!("a\u{fffd}\u{fffd}")));
    assert_eq!(read(b"[1e400, -1e400, 5]"), Ok(json!([f64::MAX, f64::MIN, 5])));
    assert!(read(br#"{"a": 1e400"#).is_err());
}

#[test]
fn a_type_that_is_no_text_is_told_before_anything_else() {
    let fault = |value: Value| type_fault(&value).unwrap_or_default();
    assert_eq!(fault(json!({"metadata": 5})), "");
    assert_eq!(fault(json!(null)), "");
    assert!(fault(json!([])).contains("cannot unmarshal array into Go value of type struct { APIVersion string"));
    assert!(fault(json!({"kind": {}})).ends_with("cannot unmarshal object into Go struct field .kind of type string"));
    assert_eq!(
        fault(json!({"apiVersion": "a/b/c"})),
        "unexpected GroupVersion string: a/b/c"
    );
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = json(&bytes, &Limits::default());
        let _ = yaml(&bytes, &Limits::default());
    }

    #[test]
    fn no_near_document_makes_a_reader_panic(text in "[\\[\\]{}:,\"'a0 \n&*|>-]{0,60}") {
        let _ = json(text.as_bytes(), &Limits::default());
        let _ = yaml(text.as_bytes(), &Limits::default());
    }
}

#[test]
fn problems_come_in_the_order_of_the_text() {
    let body = br#"{"zed":1,"data":{"a":"b","a":"c"},"list":[{"x":1}],"alpha":2}"#;
    let unknown = |path: &str| StrictProblem::UnknownField(path.to_owned());
    let mut problems = json(body, &Limits::default()).unwrap().duplicates;
    problems.extend([unknown("alpha"), unknown("list[0].x"), unknown("zed")]);
    in_text_order(body, &mut problems);
    assert_eq!(
        StrictError(problems).to_string(),
        "strict decoding error: unknown field \"zed\", duplicate field \"data.a\", unknown field \"list[0].x\", \
         unknown field \"alpha\""
    );
}

#[test]
fn yaml_tells_the_line_of_a_name_that_is_repeated() {
    let body = b"kind: A\nspec:\n  a: 1\n  b: 2\n  a: 3\n  b: 4\n";
    let mut problems = yaml(body, &Limits::default()).unwrap().duplicates;
    problems.push(StrictProblem::UnknownField("unk".to_owned()));
    assert_eq!(
        StrictError(problems).to_string(),
        "strict decoding error: yaml: unmarshal errors:\n  line 5: key \"a\" already set in map\n  line 6: key \"b\" \
         already set in map, unknown field \"unk\""
    );
}
