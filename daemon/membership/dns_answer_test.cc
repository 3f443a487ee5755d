#include "daemon/membership/dns_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/membership/testing/dns_server.h"

namespace ckptd::membership {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Two(size_t number) { return {static_cast<char>(number >> 8), static_cast<char>(number & 0xFF)}; }

std::string Record(uint16_t type, const std::string& data, uint16_t dns_class = 1) {
  return "\xC0\x0C" + Two(type) + Two(dns_class) + std::string(4, '\0') + Two(data.size()) + data;
}

// An answer to the question for "n", with these records.
std::string Answer(const std::vector<std::string>& records, uint16_t flags = 0x8180) {
  std::string message = Two(7) + Two(flags) + Two(1) + Two(records.size()) + Two(0) + Two(0);
  message += std::string("\x01n\0", 3) + Two(kDnsA) + Two(1);
  for (const std::string& record : records) message += record;
  return message;
}

std::string ErrorOf(const std::string& message) {
  auto parsed = ParseDnsAnswer(message);
  EXPECT_EQ(CodeOf(parsed.status()), ErrorCode::CORRUPT);
  return std::string(parsed.status().message());
}

TEST(DnsAnswer, AddressesAndServices) {
  constexpr uint16_t kCname = 5;
  auto records = ParseDnsAnswer(Answer({Record(kDnsA, AddressData("10.0.0.2")), Record(kDnsA, AddressData("10.0.0.1")),
                                        Record(kDnsA, AddressData("10.0.0.2")), Record(kCname, "\xC0\x0C"),
                                        Record(kDnsAaaa, AddressData("fd00::1")), Record(kDnsA, "abcd", 3),
                                        Record(kDnsSrv, SrvData("Ckptd-0.Svc", 9465))}));
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_THAT(*records, ElementsAre(DnsRecord{"10.0.0.1", 0}, DnsRecord{"10.0.0.2", 0}, DnsRecord{"ckptd-0.svc", 9465},
                                    DnsRecord{"fd00::1", 0}));
  EXPECT_THAT(*ParseDnsAnswer(Answer({})), IsEmpty());
}

TEST(DnsAnswer, WhatIsWrongIsSaid) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("0 bytes that are no DNS message"));
  EXPECT_THAT(ErrorOf(std::string(70000, '\0')), HasSubstr("70000 bytes that are no DNS message"));
  EXPECT_THAT(ErrorOf(Answer({}, 0x8380)), HasSubstr("it was cut"));
  EXPECT_THAT(ErrorOf(Answer({}, 0x8182)), HasSubstr("the server says error 2"));
  EXPECT_THAT(ErrorOf(Answer({Record(kDnsA, "abc")})), HasSubstr("an address of 3 bytes"));
  EXPECT_THAT(ErrorOf(Answer({Record(kDnsAaaa, AddressData("10.0.0.1"))})), HasSubstr("an address of 4 bytes"));
  EXPECT_THAT(ErrorOf(Answer({Record(kDnsSrv, "123456")})), HasSubstr("too short"));
  EXPECT_THAT(ErrorOf(Answer({Record(kDnsSrv, SrvData("", 80))})), HasSubstr("no such service"));
  EXPECT_THAT(ErrorOf(Answer({Record(kDnsSrv, SrvData("x", 0))})), HasSubstr("no such service"));
  const std::string whole = Answer({Record(kDnsA, AddressData("10.0.0.1"))});
  for (size_t size = 0; size < whole.size(); ++size) (void)ErrorOf(whole.substr(0, size));
}

// A target that points at itself, and one that points behind the message.
TEST(DnsAnswer, PointersThatGoNowhereAreRefused) {
  const std::string head(6, '\x01');
  const std::string until = Answer({Record(kDnsSrv, head + "\xC0\xFF")});
  EXPECT_THAT(ErrorOf(until), HasSubstr("no name"));
  const size_t at = until.size() - 2;
  std::string loop = until;
  loop[at] = static_cast<char>(0xC0 | at >> 8);
  loop[at + 1] = static_cast<char>(at & 0xFF);
  EXPECT_THAT(ErrorOf(loop), HasSubstr("no name"));
}

TEST(DnsAnswer, FlippedBytesNeverGiveMoreThanTheBytesHold) {
  std::vector<std::string> records;
  records.reserve(21);
  for (int i = 0; i < 20; ++i) records.push_back(Record(kDnsA, AddressData(absl::StrCat("10.0.0.", i))));
  records.push_back(Record(kDnsSrv, SrvData("a.b.c", 80)));
  const std::string whole = Answer(records);
  std::mt19937 random(3);
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string message = whole;
    for (uint32_t flips = 1 + random() % 4; flips > 0; --flips)
      message[random() % message.size()] = static_cast<char>(random());
    auto answer = ParseDnsAnswer(message);
    if (!answer.ok()) continue;
    ++parsed;
    ASSERT_LE(answer->size(), message.size() / 12);
  }
  EXPECT_GT(parsed, 100) << "else this shows nothing";
}

}  // namespace
}  // namespace ckptd::membership
