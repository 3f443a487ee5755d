#include "daemon/membership/testing/dns_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/os/event_fd.h"

namespace ckptd::membership {
namespace {

constexpr size_t kHeader = 12;
constexpr size_t kUdpBytes = 512;

std::string Number16(size_t number) {
  return {static_cast<char>(number >> 8 & 0xFF), static_cast<char>(number & 0xFF)};
}

std::string EncodeName(const std::string& name) {
  std::string out;
  for (absl::string_view label : absl::StrSplit(name, '.'))
    absl::StrAppend(&out, std::string(1, static_cast<char>(label.size())), label);
  return out + std::string(1, '\0');
}

// The name in the question, lower case, and where its type stands.
std::pair<std::string, size_t> DecodeName(const std::string& question) {
  std::string name;
  size_t at = kHeader;
  while (at < question.size() && question[at] != 0) {
    const auto length = static_cast<unsigned char>(question[at]);
    absl::StrAppend(&name, name.empty() ? "" : ".", question.substr(at + 1, length));
    at += length + size_t{1};
  }
  return {absl::AsciiStrToLower(name), at + 1};
}

std::string Header(const std::string& question, uint16_t flags, size_t answers) {
  return question.substr(0, 2) + Number16(flags) + Number16(1) + Number16(answers) + Number16(0) + Number16(0);
}

UniqueFd Bound(int type, uint16_t port) {
  UniqueFd fd(socket(AF_INET, type | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return {};
  return fd;
}

uint16_t PortOf(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  (void)getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

bool ReceiveAll(int fd, char* into, size_t size) {
  for (size_t got = 0; got < size;) {
    const ssize_t more = recv(fd, into + got, size - got, 0);
    if (more <= 0) return false;
    got += static_cast<size_t>(more);
  }
  return true;
}

}  // namespace

std::string AddressData(const std::string& ip) {
  std::array<char, 16> bytes{};
  const bool six = ip.find(':') != std::string::npos;
  if (inet_pton(six ? AF_INET6 : AF_INET, ip.c_str(), bytes.data()) != 1) std::abort();
  return {bytes.data(), six ? size_t{16} : size_t{4}};
}

std::string SrvData(const std::string& target, uint16_t port) {
  return Number16(0) + Number16(100) + Number16(port) + EncodeName(target);
}

// The system chooses the port for UDP; now and then somebody else has it for TCP.
DnsServer::DnsServer() : stop_(*CreateEventFd()) {
  while (!tcp_.valid()) {
    udp_ = Bound(SOCK_DGRAM, 0);
    port_ = PortOf(udp_.get());
    tcp_ = Bound(SOCK_STREAM, port_);
  }
  if (listen(tcp_.get(), 16) != 0) std::abort();
  thread_ = std::make_unique<Thread>("dns-server", [this] { Serve(); });
}

DnsServer::~DnsServer() {
  SignalEventFd(stop_.get());
  thread_->Join();
}

std::string DnsServer::address() const { return absl::StrCat("127.0.0.1:", port_); }

void DnsServer::Set(const std::string& name, uint16_t type, std::vector<std::string> data) {
  MutexLock lock(mutex_);
  records_[name][type] = std::move(data);
}

void DnsServer::Behave(Manner manner) {
  MutexLock lock(mutex_);
  manner_ = manner;
}

int DnsServer::questions() {
  MutexLock lock(mutex_);
  return questions_;
}

void DnsServer::Serve() {
  std::array<pollfd, 3> fds = {{{stop_.get(), POLLIN, 0}, {udp_.get(), POLLIN, 0}, {tcp_.get(), POLLIN, 0}}};
  while (poll(fds.data(), fds.size(), -1) >= 0 && fds[0].revents == 0) {
    if (fds[1].revents != 0) ServeUdp();
    if (fds[2].revents != 0) ServeTcp();
  }
}

void DnsServer::ServeUdp() {
  std::array<char, 4096> bytes{};
  sockaddr_in from{};
  socklen_t length = sizeof(from);
  const ssize_t got = recvfrom(udp_.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
  if (got < static_cast<ssize_t>(kHeader)) return;
  const std::string answer = AnswerTo({bytes.data(), static_cast<size_t>(got)}, /*tcp=*/false);
  if (answer.empty()) return;
  (void)sendto(udp_.get(), answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&from), length);
}

void DnsServer::ServeTcp() {
  const UniqueFd fd(accept4(tcp_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  std::array<char, 2> size{};
  if (!ReceiveAll(fd.get(), size.data(), size.size())) return;
  std::string question(
      static_cast<size_t>(static_cast<unsigned char>(size[0]) << 8 | static_cast<unsigned char>(size[1])), '\0');
  if (question.size() < kHeader || !ReceiveAll(fd.get(), question.data(), question.size())) return;
  std::string answer = AnswerTo(question, /*tcp=*/true);
  if (answer.empty()) return;
  answer = Number16(answer.size()) + answer;
  (void)send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
}

std::string DnsServer::AnswerTo(const std::string& question, bool tcp) {
  MutexLock lock(mutex_);
  ++questions_;
  const auto [name, at] = DecodeName(question);
  if (manner_ == kSilent || (manner_ == kCut && tcp) || question.size() < at + 4) return "";
  const std::string asked = question.substr(kHeader, at + 4 - kHeader);
  const auto type = static_cast<uint16_t>(static_cast<unsigned char>(question[at]) << 8 |
                                          static_cast<unsigned char>(question[at + 1]));
  constexpr uint16_t kResponse = 0x8580;
  constexpr uint16_t kTruncated = 0x0200;
  if (manner_ == kFailing) return Header(question, kResponse | 2, 0) + asked;
  if (manner_ == kCut) return Header(question, kResponse | kTruncated, 0) + asked;
  constexpr uint16_t kCname = 5;
  const std::string to_itself = Number16(0xC000 | kHeader);
  if (manner_ == kAlias)
    return Header(question, kResponse, 1) + asked + to_itself + Number16(kCname) + Number16(1) + std::string(4, '\0') +
           Number16(to_itself.size()) + to_itself;
  const auto known = records_.find(name);
  if (known == records_.end()) return Header(question, kResponse | 3, 0) + asked;
  std::string body = asked;
  for (const std::string& data : known->second[type])
    body +=
        Number16(0xC000 | kHeader) + Number16(type) + Number16(1) + std::string(4, '\0') + Number16(data.size()) + data;
  const size_t count = known->second[type].size();
  if (!tcp && kHeader + body.size() > kUdpBytes) return Header(question, kResponse | kTruncated, 0) + asked;
  std::string answer = Header(question, kResponse, manner_ == kGarbage ? 60000 : count) + body;
  if (manner_ == kStrange) answer[0] = static_cast<char>(answer[0] + 1);
  return answer;
}

}  // namespace ckptd::membership
