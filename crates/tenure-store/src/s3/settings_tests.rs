use super::*;

fn resolved(url: &str, variables: &[(&str, &str)]) -> Result<Settings, StoreError> {
    let variable = |name: &str| {
        let given = variables.iter().find(|(n, _)| *n == name);
        given.map(|(_, value)| (*value).to_owned())
    };
    ParsedUrl::new(url)?.resolve(variable)
}

fn place(url: &str, variables: &[(&str, &str)]) -> String {
    let s = resolved(url, variables).unwrap();
    format!("{} {} {}{}", s.region, s.host, s.before, s.root)
}

#[test]
fn a_url_says_where_the_bucket_is() {
    for (url, wanted) in [
        (
            "s3://shop/prod?region=eu-west-1",
            "eu-west-1 shop.s3.eu-west-1.amazonaws.com prod/",
        ),
        (
            "s3://shop?region=r&path_style=true",
            "r s3.r.amazonaws.com /shop",
        ),
        ("s3://sh.op/?region=r", "r s3.r.amazonaws.com /sh.op"),
        (
            "s3://shop/a/b/?endpoint=http://127.0.0.1:8333",
            "us-east-1 127.0.0.1:8333 /shopa/b/",
        ),
        (
            "s3://shop?endpoint=https%3A%2F%2FStore.example%3A443/",
            "us-east-1 store.example /shop",
        ),
        (
            "s3://shop?endpoint=https://e.example&path_style=false",
            "us-east-1 shop.e.example ",
        ),
        (
            "s3://shop?endpoint=http://e.example:9000&allow_http=true",
            "us-east-1 e.example:9000 /shop",
        ),
    ] {
        assert_eq!(place(url, &[]), wanted, "{url}");
    }
}

#[test]
fn the_environment_fills_in_what_the_url_leaves_out() {
    let variables = [
        ("AWS_REGION", "eu-north-1"),
        ("AWS_DEFAULT_REGION", "other"),
        ("AWS_ENDPOINT_URL", "https://all.example"),
        ("AWS_ENDPOINT_URL_S3", "https://s3.example"),
    ];
    assert_eq!(
        place("s3://shop", &variables),
        "eu-north-1 s3.example /shop"
    );
    let url = "s3://shop?region=here&endpoint=https://mine.example";
    assert_eq!(place(url, &variables), "here mine.example /shop");
    let e = resolved("s3://shop", &[]).unwrap_err().to_string();
    assert!(e.contains("AWS_REGION"), "{e}");
}

#[test]
fn a_url_that_cannot_be_meant_is_refused_by_name() {
    for (url, wanted) in [
        ("s3:shop", "has no //"),
        ("s3://", "has no bucket name"),
        ("s3://ab/x", "has no bucket name"),
        ("s3://AKIA:secret@shop/x", "AWS_SECRET_ACCESS_KEY"),
        ("s3://shop/a//b", "prefix"),
        ("s3://shop/.tenure", "prefix"),
        ("s3://shop?colour=red", "unknown option \"colour\""),
        ("s3://shop?path_style=perhaps", "neither true nor false"),
        ("s3://shop?poll=fast", "from 10ms to 60s"),
        ("s3://shop?poll=1ms", "from 10ms to 60s"),
        ("s3://shop?poll=61s", "from 10ms to 60s"),
    ] {
        let e = ParsedUrl::new(url).unwrap_err().to_string();
        assert!(e.contains(wanted), "{e}");
        assert!(!e.contains("secret@"), "{e}");
    }
    for (endpoint, wanted) in [
        ("shop.example", "is not a URL"),
        ("ftp://shop.example", "is not a URL"),
        ("https://shop.example/path", "more than a host"),
        ("http://shop.example", "allow_http=true"),
    ] {
        let url = format!("s3://shop?endpoint={endpoint}");
        let e = resolved(&url, &[]).unwrap_err().to_string();
        assert!(e.contains(wanted) && e.contains(endpoint), "{e}");
    }
}

#[test]
fn the_poll_interval_is_read_with_its_unit() {
    for (given, wanted) in [("", 2000), ("?poll=500ms", 500), ("?poll=5s", 5000)] {
        let parsed = ParsedUrl::new(&format!("s3://shop/x{given}")).unwrap();
        assert_eq!(parsed.poll, Duration::from_millis(wanted));
    }
}
