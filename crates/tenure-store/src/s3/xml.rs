//! What S3 answers in XML: lists and refusals.

use serde::Deserialize;

/// One page of a list.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct XmlListPage {
    pub(super) contents: Vec<ListedObject>,
    pub(super) is_truncated: bool,
    pub(super) next_continuation_token: Option<String>,
}

/// An object, as a list has it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListedObject {
    pub(super) key: String,
    #[serde(rename = "ETag")]
    pub(super) etag: String,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) last_modified: String,
}

/// Why a request was refused.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct XmlError {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
}

/// Reads one page of a list.
pub(super) fn page(body: &[u8]) -> Result<XmlListPage, String> {
    let text = std::str::from_utf8(body).map_err(|e| e.to_string())?;
    if !text.contains("<ListBucketResult") {
        return Err("not a list of objects".to_owned());
    }
    quick_xml::de::from_str(text).map_err(|e| e.to_string())
}

/// Reads a refusal. Whoever refuses without a reason, or in other words than S3, has said nothing.
pub(super) fn refusal(body: &[u8]) -> XmlError {
    std::str::from_utf8(body)
        .ok()
        .filter(|text| text.contains("<Error"))
        .and_then(|text| quick_xml::de::from_str(text).ok())
        .unwrap_or_default()
}

/// The text of the first element of this name.
pub(super) fn element<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    Some(rest.split_once("</")?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_with_its_quoted_etags() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>shop</Name><Prefix>a/</Prefix>
            <KeyCount>2</KeyCount><IsTruncated>true</IsTruncated><NextContinuationToken>t=</NextContinuationToken>
            <Contents><Key>a/1.json</Key><LastModified>2026-11-16T07:00:05.000Z</LastModified>
            <ETag>&quot;abc&quot;</ETag><Size>60</Size><StorageClass>STANDARD</StorageClass></Contents>
            <Contents><Key>a/2.json</Key><ETag>"def"</ETag><Size>1</Size></Contents></ListBucketResult>"#;
        let page = page(body.as_bytes()).unwrap();
        assert!(page.is_truncated);
        assert_eq!(page.next_continuation_token.as_deref(), Some("t="));
        let seen: Vec<_> = page
            .contents
            .iter()
            .map(|o| (&*o.key, &*o.etag, o.size))
            .collect();
        assert_eq!(
            seen,
            [("a/1.json", "\"abc\"", 60), ("a/2.json", "\"def\"", 1)]
        );
    }

    #[test]
    fn an_empty_page_is_one_and_anything_else_is_none() {
        assert_eq!(
            page(b"<ListBucketResult></ListBucketResult>"),
            Ok(XmlListPage::default())
        );
        for body in [&b""[..], b"<html>hello</html>", b"\xff"] {
            page(body).unwrap_err();
        }
    }

    #[test]
    fn a_refusal_is_told_by_its_code() {
        let body =
            b"<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>none</Message>\
                     <BucketName>shop</BucketName></Error>";
        let said = refusal(body);
        assert_eq!((&*said.code, &*said.message), ("NoSuchBucket", "none"));
        assert_eq!(refusal(b"<html>busy</html>"), XmlError::default());
    }
}
