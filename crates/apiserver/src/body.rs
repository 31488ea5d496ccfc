//! The body of an answer: bytes at once, or a stream of events.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

/// What an answer carries.
pub struct Body(Kind);

enum Kind {
    Whole(Option<Bytes>),
    Stream(Pin<Box<dyn Stream>>),
}

/// A body that comes piece by piece.
pub trait Stream: Send {
    /// The next piece; nothing at the end.
    fn poll_piece(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Self(Kind::Whole(None))
    }

    /// A body that is there at once.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self(Kind::Whole((!bytes.is_empty()).then_some(bytes)))
    }

    /// A body that comes piece by piece.
    pub fn stream(stream: impl Stream + 'static) -> Self {
        Self(Kind::Stream(Box::pin(stream)))
    }

    /// The bytes, if they are all there.
    pub fn as_whole(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Whole(bytes) => Some(bytes.as_deref().unwrap_or_default()),
            Kind::Stream(_) => None,
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Stream(stream) => stream
                .as_mut()
                .poll_piece(context)
                .map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Kind::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Stream(_) => SizeHint::default(),
        }
    }
}
