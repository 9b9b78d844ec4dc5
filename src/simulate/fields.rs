use csv_core::Reader;

/// Takes lines of comma-separated values apart.
///
/// By the parser of the csv crate alone: its reader would let a quote that is not closed run to the end of the file.
#[derive(Debug)]
pub(super) struct Splitter {
    parser: Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Splitter {
    pub(super) fn new() -> Self {
        Self { parser: Reader::new(), text: Vec::new(), ends: Vec::new() }
    }

    /// The fields of a line, without the spaces around them.
    pub(super) fn split(&mut self, line: &str) -> Vec<&str> {
        // No line has more text than it is long, nor more fields than one for each byte and one after the last.
        self.text.resize(line.len(), 0);
        self.ends.resize(line.len() + 1, 0);
        self.parser.reset();
        let (_, _, written, fields) = self.parser.read_record(line.as_bytes(), &mut self.text, &mut self.ends);
        // The end of the input ends the last field.
        let (_, _, _, last) = self.parser.read_record(&[], &mut self.text[written..], &mut self.ends[fields..]);
        let ends = &self.ends[..fields + last];
        let starts = std::iter::once(&0).chain(ends);
        // What is taken away is ASCII, so that texts stay texts, and the fallback is never taken.
        let field =
            |(start, end): (&usize, &usize)| str::from_utf8(&self.text[*start..*end]).unwrap_or_default().trim();
        starts.zip(ends).map(field).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_apart_at_commas_outside_of_quotes() {
        let mut splitter = Splitter::new();
        for (line, fields) in [
            ("1,ada,2", vec!["1", "ada", "2"]),
            ("1", vec!["1"]),
            (" 1 , ada ,", vec!["1", "ada", ""]),
            (",,", vec!["", "", ""]),
            ("\"a,b\",\"say \"\"ä\"\"\"", vec!["a,b", "say \"ä\""]),
            ("\"open,1", vec!["open,1"]),
            ("\"", vec![""]),
            ("1,plain", vec!["1", "plain"]),
            ("5\",a", vec!["5\"", "a"]),
        ] {
            assert_eq!(splitter.split(line), fields, "{line:?}");
        }
    }
}
