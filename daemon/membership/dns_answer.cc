#include "daemon/membership/dns_answer.h"

#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netinet/in.h>
#include <resolv.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::membership {
namespace {

constexpr size_t kSrvFixedBytes = 6;  // priority, weight, port

absl::Status Corrupt(absl::string_view why) { return Error(ErrorCode::CORRUPT, absl::StrCat("DNS answer: ", why)); }

absl::StatusOr<DnsRecord> AddressRecord(const ns_rr& record, int family, size_t bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (ns_rr_rdlen(record) != bytes || inet_ntop(family, ns_rr_rdata(record), text.data(), text.size()) == nullptr)
    return Corrupt(absl::StrCat("an address of ", ns_rr_rdlen(record), " bytes"));
  return DnsRecord{text.data(), 0};
}

// Priorities and weights are for choosing one server; here all are wanted.
absl::StatusOr<DnsRecord> SrvRecord(const ns_msg& message, const ns_rr& record) {
  if (ns_rr_rdlen(record) <= kSrvFixedBytes) return Corrupt("an SRV record that is too short");
  const unsigned char* data = ns_rr_rdata(record);
  const auto port = static_cast<uint16_t>(data[4] << 8 | data[5]);
  std::array<char, NS_MAXDNAME> target{};
  if (ns_name_uncompress(ns_msg_base(message), ns_msg_end(message), data + kSrvFixedBytes, target.data(),
                         target.size()) < 0)
    return Corrupt("the target of an SRV record is no name");
  std::string host = absl::AsciiStrToLower(target.data());
  if (!host.empty() && host.back() == '.') host.pop_back();
  if (host.empty() || port == 0) return Corrupt("an SRV record says that there is no such service");
  return DnsRecord{std::move(host), port};
}

absl::StatusOr<std::optional<DnsRecord>> Interpret(const ns_msg& message, const ns_rr& record) {
  if (ns_rr_class(record) != ns_c_in) return std::nullopt;
  switch (ns_rr_type(record)) {
    case ns_t_a:
      return AddressRecord(record, AF_INET, sizeof(in_addr));
    case ns_t_aaaa:
      return AddressRecord(record, AF_INET6, sizeof(in6_addr));
    case ns_t_srv:
      return SrvRecord(message, record);
    default:
      return std::nullopt;
  }
}

bool Before(const DnsRecord& a, const DnsRecord& b) { return std::tie(a.host, a.port) < std::tie(b.host, b.port); }

}  // namespace

absl::StatusOr<std::vector<DnsRecord>> ParseDnsAnswer(absl::string_view bytes) {
  ns_msg message;  // NOLINT(cppcoreguidelines-pro-type-member-init): ns_initparse fills it
  if (bytes.size() > NS_MAXMSG ||
      ns_initparse(reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()), &message) != 0)
    return Corrupt(absl::StrCat(bytes.size(), " bytes that are no DNS message"));
  if (ns_msg_getflag(message, ns_f_tc) != 0) return Corrupt("it was cut, and TCP gave no longer one");
  if (ns_msg_getflag(message, ns_f_rcode) != ns_r_noerror)
    return Corrupt(absl::StrCat("the server says error ", ns_msg_getflag(message, ns_f_rcode)));
  std::vector<DnsRecord> records;
  for (int i = 0; i < ns_msg_count(message, ns_s_an); ++i) {
    ns_rr record;  // NOLINT(cppcoreguidelines-pro-type-member-init): ns_parserr fills it
    if (ns_parserr(&message, ns_s_an, i, &record) != 0) return Corrupt("a record does not parse");
    CKPTD_ASSIGN_OR_RETURN(std::optional<DnsRecord> found, Interpret(message, record));
    if (found) records.push_back(*std::move(found));
  }
  std::sort(records.begin(), records.end(), Before);
  records.erase(std::unique(records.begin(), records.end()), records.end());
  return records;
}

}  // namespace ckptd::membership
