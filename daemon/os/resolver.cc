#include "daemon/os/resolver.h"

#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd {
namespace {

constexpr size_t kLongestAnswer = 65535;
constexpr int kTries = 2;
constexpr size_t kLongestName = 1024;  // the resolver's own buffers hold NS_MAXDNAME = 1025

struct CloseResolver {
  void operator()(struct __res_state* state) const {
    res_nclose(state);
    delete state;
  }
};
using ResolverState = std::unique_ptr<struct __res_state, CloseResolver>;

const char* NameOf(Resolver::Type type) {
  switch (type) {
    case Resolver::Type::kA:
      return "A";
    case Resolver::Type::kAaaa:
      return "AAAA";
    case Resolver::Type::kSrv:
      return "SRV";
  }
  return "?";
}

absl::Status QueryError(const std::string& name, Resolver::Type type, int error, bool own_server) {
  const std::string what = absl::StrCat("DNS ", name, " (", NameOf(type), "): ");
  switch (error) {
    case HOST_NOT_FOUND:
      return Error(ErrorCode::NOT_FOUND, absl::StrCat(what, "there is no such name"));
    case NO_DATA:
      return Error(ErrorCode::NOT_FOUND, absl::StrCat(what, "the name has no such record"));
    case NO_RECOVERY:
      return Error(ErrorCode::TIMEOUT, absl::StrCat(what, "the servers refuse or do not understand the question"));
    default:
      return Error(ErrorCode::TIMEOUT, absl::StrCat(what, own_server ? "the server that is set gave no answer"
                                                                     : "no server of /etc/resolv.conf gave an answer"));
  }
}

}  // namespace

absl::StatusOr<Resolver> Resolver::Create(absl::string_view server, int patience_seconds) {
  if (server.empty()) return Resolver(std::nullopt, patience_seconds);
  const size_t colon = server.find(':');
  const absl::string_view port = colon == absl::string_view::npos ? "" : server.substr(colon + 1);
  in_addr ip{};
  uint32_t number = 0;
  const bool digits = !port.empty() && std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  const bool fits = digits && absl::SimpleAtoi(port, &number) && number > 0 && number <= 65535 &&
                    inet_pton(AF_INET, std::string(server.substr(0, colon)).c_str(), &ip) == 1;
  if (!fits) return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("DNS server ", server, ": expected IPv4:PORT"));
  return Resolver(Server{ip.s_addr, htons(static_cast<uint16_t>(number))}, patience_seconds);
}

absl::StatusOr<std::string> Resolver::Query(const std::string& name, Type type) const {
  if (name.size() > kLongestName || name.find('\0') != std::string::npos)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("DNS: a name of ", name.size(), " bytes"));
  ResolverState state(new struct __res_state());
  if (res_ninit(state.get()) != 0) return Error(ErrorCode::INTERNAL, "DNS: the resolver does not start");
  state->retrans = patience_;
  state->retry = kTries;
  if (server_) {
    state->nscount = 1;
    state->nsaddr_list[0].sin_family = AF_INET;
    state->nsaddr_list[0].sin_addr.s_addr = server_->ip;
    state->nsaddr_list[0].sin_port = server_->port;
  }
  std::string answer(kLongestAnswer, '\0');
  const int size = res_nsearch(state.get(), name.c_str(), ns_c_in, static_cast<int>(type),
                               reinterpret_cast<unsigned char*>(answer.data()), static_cast<int>(answer.size()));
  if (size < 0) return QueryError(name, type, state->res_h_errno, server_.has_value());
  answer.resize(std::min(static_cast<size_t>(size), kLongestAnswer));
  return answer;
}

}  // namespace ckptd
