//! Cookies of a virtual user.

use cookie_store::{CookieStore, RawCookie};
use url::Url;

use super::template::Template;

/// The value of the `Cookie` header: the user's cookies first, then those of the jar that the user
/// did not set. None if there are none.
#[must_use]
pub fn header_value(template: &Template, jar: Option<&CookieStore>) -> Option<String> {
    let given = template.cookies.as_deref().unwrap_or_default();
    let is_given = |name: &str| {
        given.split(';').any(|pair| pair.split('=').next().is_some_and(|n| n.trim() == name))
    };
    let mut value = given.to_owned();
    for (name, content) in jar.into_iter().flat_map(|jar| jar.get_request_values(&template.url)) {
        if !is_given(name) {
            if !value.is_empty() {
                value.push_str("; ");
            }
            value.push_str(name);
            value.push('=');
            value.push_str(content);
        }
    }
    (!value.is_empty()).then_some(value)
}

/// Keeps the cookies that a response to `url` set.
pub fn store(jar: &mut CookieStore, set_cookies: &[String], url: &Url) {
    let parsed = set_cookies.iter().filter_map(|text| RawCookie::parse(text.clone()).ok());
    jar.store_response_cookies(parsed, url);
}
