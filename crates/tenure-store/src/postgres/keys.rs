//! Keys as PostgreSQL's `text` can hold them.
//!
//! The one character that `text` cannot hold is NUL. It becomes `\u{1}\u{1}`, and `\u{1}` becomes `\u{1}\u{2}`: every key has
//! one spelling, the order of keys stays that of their bytes, and a prefix stays a prefix.

const MARK: char = '\u{1}';
const NUL: char = '\u{1}';
const ONE: char = '\u{2}';

/// The spelling of a key in the table.
pub(super) fn escape(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for c in key.chars() {
        match c {
            '\0' => out.extend([MARK, NUL]),
            MARK => out.extend([MARK, ONE]),
            c => out.push(c),
        }
    }
    out
}

/// Undoes [`escape`]; `None` for what it does not make, which somebody else wrote.
pub(super) fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            MARK => match chars.next()? {
                NUL => '\0',
                ONE => MARK,
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

/// The least text that is greater than every text with this prefix; `None` if there is none.
pub(super) fn after(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // In UTF-8 the order of bytes is that of code points; surrogates are not characters.
        let next = match last {
            '\u{D7FF}' => Some('\u{E000}'),
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: [&str; 10] = [
        "",
        "k",
        "k\0",
        "k\0x",
        "k\0\0",
        "k\u{1}",
        "k\u{1}\u{1}",
        "k\u{1}\u{2}",
        "k\u{2}",
        "ä",
    ];

    #[test]
    fn every_key_has_one_spelling_without_nul() {
        for key in ODD {
            let text = escape(key);
            assert!(!text.contains('\0'));
            assert_eq!(unescape(&text).as_deref(), Some(key));
        }
        assert_eq!(unescape("k\u{1}"), None);
        assert_eq!(unescape("k\u{1}x"), None);
    }

    #[test]
    fn order_and_prefixes_survive() {
        for a in ODD {
            for b in ODD {
                assert_eq!(escape(a).cmp(&escape(b)), a.cmp(b), "{a:?} {b:?}");
                let (kept, was) = (escape(a).starts_with(&escape(b)), a.starts_with(b));
                assert_eq!(kept, was, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn what_comes_after_a_prefix_comes_after_all_that_have_it() {
        for (prefix, wanted) in [
            ("a/", Some("a0")),
            ("a\u{D7FF}", Some("a\u{E000}")),
            ("a\u{10FFFF}", Some("b")),
            ("\u{10FFFF}", None),
            ("", None),
        ] {
            assert_eq!(after(prefix).as_deref(), wanted, "{prefix:?}");
        }
        assert!("a/\u{10FFFF}" < &*after("a/").unwrap());
    }
}
