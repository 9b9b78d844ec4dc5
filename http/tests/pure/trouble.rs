//! Answers of other services that ask their callers to slow down.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, from_str, from_value};
use tollgate_http::Trouble;

/// `web/tests/troubles.test.mjs` tries the mirror by the same cases.
#[test]
fn trouble_is_what_the_mirror_reads() {
    #[derive(serde::Deserialize)]
    struct Cases {
        today: String,
        cases: Vec<(u16, BTreeMap<String, Value>, Value)>,
    }
    let Cases { today, cases } = from_str(include_str!("../../../web/tests/troubles.json")).unwrap();
    let (date, mut wrong) = (httpdate::parse_http_date(&today).unwrap(), Vec::new());
    for (status, told, answer) in cases {
        let mut headers = HeaderMap::new();
        for (name, lines) in &told {
            let lines = from_value(lines.clone()).unwrap_or_else(|_| vec![lines.as_str().unwrap().to_owned()]);
            for line in lines {
                // Each character is a byte, as in `fetch`.
                let line: Vec<_> = line.chars().map(|byte| u8::try_from(byte).unwrap()).collect();
                headers.append(HeaderName::try_from(name).unwrap(), HeaderValue::from_bytes(&line).unwrap());
            }
        }
        // A clock that is wrong does no harm where the answer has a date.
        let has_date = told.get("date").is_some_and(|told| *told == *today);
        for ahead in if has_date { &[0, 3_600][..] } else { &[0] } {
            let now = date + Duration::from_secs(*ahead);
            let trouble = Trouble::of(StatusCode::from_u16(status).unwrap(), &headers, now);
            let wait = trouble.map(|trouble| trouble.retry_after.map(|span| span.as_secs_f64()));
            match (answer.as_f64(), answer.as_str(), wait) {
                (Some(seconds), _, Some(Some(wait))) if (wait - seconds).abs() < 1e-3 => {}
                (_, Some("trouble"), Some(None)) | (_, Some("nothing" | "failure"), None) => {}
                _ => wrong.push(format!("{status} {told:?} is {wait:?}, not {answer}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
