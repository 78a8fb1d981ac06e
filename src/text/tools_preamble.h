/* The tool preamble: the part of the system turn that declares tools. Wire format of the release,
 * under its own notice, which is why it has a file to itself. */
#ifndef DI_TEXT_TOOLS_PREAMBLE_H
#define DI_TEXT_TOOLS_PREAMBLE_H

/* Named fields in braces stand for {dsml_token}, {thinking_start_token}, {thinking_end_token}
 * (markers), {tc_block_name}, {tool_call_tag_name}, {tool_parameter_tag_name} (tag names) and
 * {tool_schemas} (one line of JSON a tool). No other brace occurs. 1178 bytes of UTF-8, SHA-256
 * 9a239469af824bfaf81a341dbf46a4451b17b68dc659d0e198f7b553fd82cfeb. */
extern const char di_tools_preamble[];

#endif
