//! Names of signals.

const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// The number of a signal given by name, with or without `SIG`, or by number; nothing for what is none.
pub(crate) fn number(text: &str) -> Option<i32> {
    let text = text.trim();
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let name = text.strip_prefix("SIG").unwrap_or(text);
    if let Some(offset) = name.strip_prefix("RTMIN+") {
        return Some(34 + offset.parse::<i32>().ok()?);
    }
    if let Some(offset) = name.strip_prefix("RTMAX-") {
        return Some(64 - offset.parse::<i32>().ok()?);
    }
    let at = NAMES.iter().position(|known| *known == name)?;
    i32::try_from(at + 1).ok()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(number("SIGTERM"), Some(15));
        assert_eq!(number("INT"), Some(2));
        assert_eq!(number("9"), Some(9));
        assert_eq!(number("SIGRTMIN+3"), Some(37));
        assert_eq!(number("SIGNONE"), None);
    }
}
