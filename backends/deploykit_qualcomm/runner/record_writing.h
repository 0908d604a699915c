/* Writes a record: a folder with record.jsonl, one call a line, and record.bin, raw data, each content once.
 *
 * One thread at a time: providers build their graphs on one. */
#ifndef DEPLOYKIT_RECORD_WRITING_H
#define DEPLOYKIT_RECORD_WRITING_H

#include "qnn_api.h"

/* False where the folder cannot be written to. */
int record_open(const char *folder);

/* One line: begun with the call's name, ended with its answer. After a failed write nothing more is written, so that a
 * record is whole or ends early, and never has a hole. */
void record_begin(const char *call);
void record_end(qnn_status answer);

void put_number(const char *key, uint64_t value);
void put_text(const char *key, const char *text);
void put_texts(const char *key, const char *const *texts, int count);
void put_version(const char *key, qnn_version version);
void put_configs(const qnn_config *const *configs, uint32_t words);

/* With everything, its data too; or by their names alone, where the graph has them already. */
void put_tensor(const char *key, const qnn_tensor *tensor);
void put_tensors(const char *key, const qnn_tensor *tensors, uint32_t count);
void put_node(const qnn_node *node, int names_only);

#endif
