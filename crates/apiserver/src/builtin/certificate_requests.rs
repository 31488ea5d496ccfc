//! Certificate requests as they travel: PEM in base64, signed with the key that they are about.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use x509_parser::prelude::{FromDer as _, Pem, X509CertificationRequest};

/// What of a request decides whether it is taken.
pub(crate) struct Request {
    /// The groups that its owner would be in.
    pub(crate) organizations: Vec<String>,
}

impl Request {
    /// Reads a request and checks that whoever made it has the key.
    pub(crate) fn parse(base64: &str) -> Result<Self, String> {
        const TYPE: &str = "PEM block type must be CERTIFICATE REQUEST";
        let pem = STANDARD.decode(base64).map_err(|error| error.to_string())?;
        let block = Pem::iter_from_buffer(&pem).next().and_then(Result::ok);
        let block = block.filter(|block| block.label == "CERTIFICATE REQUEST").ok_or(TYPE)?;
        let (_, request) = X509CertificationRequest::from_der(&block.contents)
            .map_err(|error| format!("the request cannot be read: {error}"))?;
        request
            .verify_signature()
            .map_err(|error| format!("the signature does not fit: {error}"))?;
        let subject = &request.certification_request_info.subject;
        Ok(Self {
            organizations: subject
                .iter_organization()
                .filter_map(|name| name.as_str().ok().map(str::to_owned))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn request(organization: &str) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params
            .serialize_request(&KeyPair::generate().unwrap())
            .unwrap()
            .pem()
            .unwrap()
    }

    #[test]
    fn a_request_tells_its_groups() {
        let parsed = Request::parse(&STANDARD.encode(request("team"))).ok().unwrap();
        assert_eq!(parsed.organizations, ["team"]);
    }

    #[test]
    fn what_is_no_request_or_not_signed_by_its_key_is_refused() {
        let refused = |text: &str| Request::parse(&STANDARD.encode(text)).err().unwrap();
        assert_eq!(refused("nonsense"), "PEM block type must be CERTIFICATE REQUEST");
        let other = request("team").replace("CERTIFICATE REQUEST", "CERTIFICATE");
        assert_eq!(refused(&other), "PEM block type must be CERTIFICATE REQUEST");
        let (one, two) = (request("team"), request("other"));
        let (one, two): (Vec<&str>, Vec<&str>) = (one.lines().collect(), two.lines().collect());
        // The last lines hold the signature.
        let mut mixed = one[..one.len() - 3].to_vec();
        mixed.extend(&two[two.len() - 3..]);
        assert!(Request::parse(&STANDARD.encode(mixed.join("\n"))).is_err());
    }
}
