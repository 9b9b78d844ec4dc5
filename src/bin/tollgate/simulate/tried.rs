use std::str::FromStr;

use tollgate::simulate::{Rule, RuleError};

use crate::limits_file::{LimitsArgs, LimitsFileError};

/// A limit to try, as the command line names it.
#[derive(Clone, Debug)]
pub(super) enum Tried {
    Defined(Rule),
    /// One of a limits file.
    Named {
        name: String,
        global: bool,
    },
}

impl Tried {
    pub(super) fn rule(&self, file: &LimitsArgs) -> Result<Rule, LimitsFileError> {
        match self {
            Self::Defined(rule) => Ok(rule.clone()),
            Self::Named { name, global: true } => file.limit(name).map(Rule::global),
            Self::Named { name, global: false } => file.limit(name).map(Rule::each),
        }
    }
}

impl FromStr for Tried {
    type Err = RuleError;

    /// A definition has fields or begins with a kind; all else is a name, and the word `global` behind it.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let words: Vec<_> = text.split_whitespace().collect();
        match words.as_slice() {
            [name] if !is_definition(name) => Ok(Self::Named { name: (*name).to_owned(), global: false }),
            [name, "global"] if !is_definition(name) => Ok(Self::Named { name: (*name).to_owned(), global: true }),
            _ => text.parse().map(Self::Defined),
        }
    }
}

fn is_definition(word: &str) -> bool {
    matches!(word, "token_bucket" | "fixed_window" | "stepped_bucket") || word.contains('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_kind_is_a_name() {
        let named = |text: &str| match text.parse() {
            Ok(Tried::Named { name, global }) => Some((name, global)),
            _ => None,
        };
        assert_eq!(named("send_message"), Some(("send_message".to_owned(), false)));
        assert_eq!(named(" send_message  global"), Some(("send_message".to_owned(), true)));
        assert_eq!(named("token_bucket"), None);
        assert!(matches!("token_bucket rate=10 per=1m".parse(), Ok(Tried::Defined(_))));
        assert!("send_message rate=10".parse::<Tried>().is_err());
        assert!("send_message globally".parse::<Tried>().is_err());
    }
}
