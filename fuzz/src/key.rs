use tollgate::{Key, KeyError, KeyWriter, ToKey};

use crate::input::expect_round_trip;

/// A key of texts: each text is followed by a byte `0xFF`, which is in no text.
///
/// The key names just these texts, and stays the same when it is written and read. Texts that make no key are an error
/// with a reason.
pub fn key(bytes: &[u8]) {
    let Ok(texts) = bytes.split(|byte| *byte == 0xff).map(str::from_utf8).collect::<Result<Vec<_>, _>>() else {
        return;
    };
    let whole = Key::text(Texts(&texts));
    assert_eq!(components(&whole), texts, "{whole}");
    let key = match Key::new(Texts(&texts)) {
        Ok(key) => key,
        Err(KeyError::Empty) => return assert!(whole.is_empty(), "{whole}"),
        Err(KeyError::Nul) => return assert!(whole.contains('\0') && whole.len() <= Key::MAX_BYTES, "{whole}"),
        Err(KeyError::TooLong { bytes }) => {
            return assert!((Key::MAX_BYTES + 1..=whole.len()).contains(&bytes), "{bytes} of {whole}");
        }
        Err(other) => panic!("{other:?}: {whole}"),
    };
    assert_eq!(key.as_str(), whole);
    assert!(!key.is_global() && key.as_str().len() <= Key::MAX_BYTES);
    assert_eq!(key.to_string(), whole);
    assert_eq!(Key::try_from(whole.clone()).as_ref(), Ok(&key), "its text is the key");
    assert_eq!(Key::new(&key).as_ref(), Ok(&key), "a key of a key is the key");
    expect_round_trip(&key);
    if let [one, other] = texts.as_slice() {
        assert_eq!(Key::new((one, other)).as_ref(), Ok(&key), "a tuple is its texts");
    }
}

struct Texts<'t>(&'t [&'t str]);

impl ToKey for Texts<'_> {
    fn write_key(&self, key: &mut KeyWriter) {
        for text in self.0 {
            key.push(text);
        }
    }
}

/// The texts that a canonical text names.
fn components(canonical: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut letters = canonical.chars();
    while let Some(letter) = letters.next() {
        let text = texts.last_mut().expect("there is always one");
        match letter {
            '\\' => text.push(letters.next().expect("a backslash stands before what it escapes")),
            '|' => texts.push(String::new()),
            other => text.push(other),
        }
    }
    texts
}
