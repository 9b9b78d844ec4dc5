//! Structured fields, read by a parser that has nothing to do with the one who wrote them.

use std::collections::BTreeMap;

use http::HeaderMap;
use sfparse::{Parser, Value};

/// A member of a list: its String, and its parameters, of which integers are read and byte sequences kept as they are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) integers: BTreeMap<String, i64>,
    pub(crate) bytes: BTreeMap<String, String>,
}

/// The members of a field that is a List of Strings. All of it must be one, or the test fails.
pub(crate) fn list(headers: &HeaderMap, field: &str) -> Vec<Member> {
    let lines: Vec<_> = headers.get_all(field).iter().map(|value| value.to_str().unwrap()).collect();
    let text = lines.join(", ");
    let mut parser = Parser::new(text.as_bytes());
    let mut members = Vec::new();
    while let Some(item) = parser.parse_list().unwrap() {
        let Value::String { range, .. } = item else { panic!("no String: {text}") };
        let name = text[range].replace("\\\"", "\"").replace("\\\\", "\\");
        let (mut integers, mut bytes) = (BTreeMap::new(), BTreeMap::new());
        while let Some((key, value)) = parser.parse_param().unwrap() {
            let key = key.to_owned();
            match value {
                Value::Integer(integer) => assert_eq!(integers.insert(key, integer), None, "{text}"),
                Value::ByteSeq(range) => assert_eq!(bytes.insert(key, text[range].to_owned()), None, "{text}"),
                other => panic!("{other:?}: {text}"),
            }
        }
        members.push(Member { name, integers, bytes });
    }
    members
}

/// The members of a field that is a Dictionary of Integers.
pub(crate) fn dictionary(headers: &HeaderMap, field: &str) -> BTreeMap<String, i64> {
    let text = headers[field].to_str().unwrap();
    let mut parser = Parser::new(text.as_bytes());
    let mut members = BTreeMap::new();
    while let Some((key, value)) = parser.parse_dict().unwrap() {
        let Value::Integer(integer) = value else { panic!("no Integer: {text}") };
        members.insert(key.to_owned(), integer);
    }
    members
}

/// An Integer, or nothing where there is no such field.
pub(crate) fn integer(headers: &HeaderMap, field: &str) -> Option<i64> {
    headers.get(field).map(|value| value.to_str().unwrap().parse().unwrap())
}
