//! Sets of completion indexes as the status writes them: `1,3-5,7`.

use std::collections::BTreeSet;

/// Reads a set. What cannot be read is left out.
pub(crate) fn read(text: &str) -> BTreeSet<i32> {
    let mut indexes = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            indexes.extend(first..=last);
        }
    }
    indexes
}

/// Writes a set, neighbours drawn together.
pub(crate) fn write(indexes: &BTreeSet<i32>) -> String {
    let mut ranges: Vec<(i32, i32)> = Vec::new();
    for index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let parts: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_drawn_together_and_read_back() {
        let indexes = BTreeSet::from([1, 3, 4, 5, 7, 8]);
        assert_eq!(write(&indexes), "1,3-5,7,8");
        assert_eq!(read("1,3-5,7,8"), indexes);
        assert_eq!(read(""), BTreeSet::new());
    }
}
