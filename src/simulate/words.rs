/// A short definition in words: a kind first, then fields as `name=value`, and flags as plain words.
pub(super) struct Words<'a> {
    pub(super) kind: &'a str,
    pub(super) fields: Vec<(&'a str, &'a str)>,
    pub(super) flags: Vec<&'a str>,
}

impl<'a> Words<'a> {
    pub(super) fn of(text: &'a str) -> Result<Self, WordsError> {
        let mut words = text.split_whitespace();
        let kind = words.next().filter(|kind| !kind.contains('=')).ok_or(WordsError::NoKind)?;
        let (mut fields, mut flags) = (Vec::new(), Vec::new());
        for word in words {
            match word.split_once('=') {
                Some((name, _)) if fields.iter().any(|(other, _)| *other == name) => {
                    return Err(WordsError::Twice { field: name.to_owned() });
                }
                Some(field) => fields.push(field),
                None => flags.push(word),
            }
        }
        Ok(Self { kind, fields, flags })
    }
}

/// Why a text is no definition in words.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WordsError {
    /// It does not begin with a kind.
    #[error("it does not begin with a kind (as in \"token_bucket rate=10 per=1m\", or \"constant rate=60 per=1s\")")]
    NoKind,
    /// A field is given twice.
    #[error("{field:?} is given twice")]
    Twice {
        /// Which.
        field: String,
    },
}
