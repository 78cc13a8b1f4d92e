//! What a whole HTTP response leads to: cookies kept, redirects followed, or the end.

use std::sync::Arc;

use super::error::Failure;
use super::exchange::Exchange;
use super::http::cookies;
use super::http::reply::{Keep, Reply};
use super::http::template::Template;
use super::request::{expect, Request};
use super::transport::tls::TlsProfile;
use super::{Engine, Vu};
use crate::recorder::Recorder;

impl<T> Engine<T> {
    pub(super) fn on_response(&mut self, slot: u32, now: u64, recorder: &mut Recorder) {
        let next = self.requests.get_mut(slot).and_then(|request| {
            let rare = request.reply.rare.as_mut()?;
            let set_cookies = std::mem::take(&mut rare.set_cookies);
            Some((request.caller.vu, request.exchange.template.clone(), set_cookies))
        });
        let Some((vu, template, set_cookies)) = next else {
            return self.finish(slot, None, now, recorder);
        };
        if !set_cookies.is_empty() {
            self.store_cookies(vu, &set_cookies, &template);
        }
        match self.redirect(slot) {
            None => self.finish(slot, None, now, recorder),
            Some(Err(failure)) => self.finish(slot, Some(failure), now, recorder),
            Some(Ok(template)) => self.follow(slot, template, now, recorder),
        }
    }

    /// Sends the request that a redirect asks for.
    fn follow(&mut self, slot: u32, template: Template, now: u64, recorder: &mut Recorder) {
        let origin = self.origin_number(&template);
        let Some(request) = self.requests.get_mut(slot) else { return };
        let next = Reply::new(expect(&template, request.caller, recorder));
        let reply = std::mem::replace(&mut request.reply, next);
        let redirected = std::mem::replace(&mut request.exchange.template, Arc::new(template));
        if request.caller.keep == Keep::Body {
            let hop = hop(request, redirected, reply, now);
            request.exchange.hops.push(hop);
        }
        request.origin = origin;
        request.exchange.redirects += 1;
        request.waiting_since_ns = now;
        request.addresses_tried = 0;
        request.retried = false;
        self.dispatch(slot, recorder);
    }

    /// The request a redirect asks for, or why it is not followed further.
    fn redirect(&mut self, slot: u32) -> Option<Result<Template, Failure>> {
        let request = self.requests.get_mut(slot)?;
        let status = request.reply.status;
        let template = &request.exchange.template;
        let limit = template.limits.redirects_max;
        if !matches!(status, 301 | 302 | 303 | 307 | 308) || limit == 0 {
            return None;
        }
        let location = request.reply.rare.as_ref()?.location.as_deref()?;
        if request.exchange.redirects >= limit {
            return Some(Err(Failure::protocol(format!("more than {limit} redirects"))));
        }
        let default = TlsProfile::default();
        let tls = template.origin.tls.as_ref().unwrap_or(&default);
        let template = template.redirected(status, location, tls);
        Some(template.map_err(|error| Failure::protocol(format!("bad redirect: {error}"))))
    }

    fn store_cookies(&mut self, vu: u32, set_cookies: &[String], template: &Template) {
        let index = vu as usize;
        if self.vus.len() <= index {
            self.vus.resize_with(index + 1, Vu::default);
        }
        if let Some(vu) = self.vus.get_mut(index) {
            let jar = vu.jar.get_or_insert_with(Box::default);
            cookies::store(jar, set_cookies, &template.url);
        }
    }
}

/// A redirect that was followed, as a person wants to see it: its head and how long it took.
fn hop(request: &Request, template: Arc<Template>, reply: Reply, now: u64) -> Exchange {
    let mut hop = Exchange::new(request.caller.step, template);
    hop.status = reply.status;
    hop.version = reply.version;
    hop.head = reply.head;
    hop.redirects = request.exchange.redirects;
    hop.latency_ns = now.saturating_sub(request.hop_started_ns);
    hop.ended_ns = now;
    hop.remote = request.exchange.remote;
    hop
}
